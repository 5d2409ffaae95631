//! A figure as PNG: strokes by their distance from each pixel, texts from glyphs of a fixed size.

use std::io::{self, Write};

use crc_fast::{CrcAlgorithm, checksum};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};

use super::Plot;
use super::figure::{Anchor, Colour, Figure, Item, Size, WIDTH};

/// Pixels of a point, in each direction: sharp on screens that have many.
const SCALE: f64 = 2.0;

/// A PNG file that shows `plot`.
///
/// # Errors
/// None but those of compression, which has none in memory.
pub(crate) fn png(plot: &Plot) -> io::Result<Vec<u8>> {
    let figure = Figure::of(plot);
    let mut canvas = Canvas::new((WIDTH * SCALE) as usize, (figure.height * SCALE) as usize);
    for item in &figure.items {
        match item {
            Item::Stroke { points, width, colour } => {
                let points: Vec<_> = points.iter().map(|point| point.map(|place| place * SCALE)).collect();
                canvas.stroke(&points, width * SCALE / 2.0, *colour);
            }
            Item::Text { at, anchor, size, colour, text } => {
                canvas.text(at.map(|place| place * SCALE), *anchor, *size, *colour, text);
            }
        }
    }
    canvas.encode()
}

/// Pixels, white at first.
struct Canvas {
    width: usize,
    height: usize,
    /// Row by row.
    pixels: Vec<Colour>,
}

impl Canvas {
    fn new(width: usize, height: usize) -> Self {
        Self { width, height, pixels: vec![[0xff; 3]; width * height] }
    }

    /// Paints a line of `radius` around the segments between `points`.
    fn stroke(&mut self, points: &[[f64; 2]], radius: f64, colour: Colour) {
        let reach = radius + 1.0;
        let ends = |axis: usize, limit: usize| {
            let places = || points.iter().map(|point| point[axis]);
            let low = (places().fold(f64::INFINITY, f64::min) - reach).max(0.0) as usize;
            let high = (places().fold(0.0, f64::max) + reach).ceil() as usize;
            low..high.min(limit)
        };
        let (columns, rows) = (ends(0, self.width), ends(1, self.height));
        // A pixel is covered as much as by the segment that covers it most: where two meet it is no darker.
        let mut covered = vec![0.0_f64; columns.len() * rows.len()];
        for nth in 0..points.len() {
            let (from, to) = (points[nth.saturating_sub(1)], points[nth]);
            let near = |axis: usize, all: &std::ops::Range<usize>| {
                let low = (from[axis].min(to[axis]) - reach).max(all.start as f64) as usize;
                let high = (from[axis].max(to[axis]) + reach).ceil() as usize;
                low..high.min(all.end)
            };
            for y in near(1, &rows) {
                for x in near(0, &columns) {
                    let distance = distance([x as f64 + 0.5, y as f64 + 0.5], from, to);
                    let cover = (radius + 0.5 - distance).clamp(0.0, 1.0);
                    let pixel = &mut covered[(y - rows.start) * columns.len() + x - columns.start];
                    *pixel = pixel.max(cover);
                }
            }
        }
        for y in rows.clone() {
            for x in columns.clone() {
                let cover = covered[(y - rows.start) * columns.len() + x - columns.start];
                self.blend(x, y, colour, cover);
            }
        }
    }

    /// Writes `text`; what the font lacks is a question mark.
    fn text(&mut self, at: [f64; 2], anchor: Anchor, size: Size, colour: Colour, text: &str) {
        let size = match size {
            Size::Label => RasterHeight::Size24,
            Size::Title => RasterHeight::Size32,
        };
        let advance = get_raster_width(FontWeight::Regular, size) as f64;
        let length = advance * text.chars().count() as f64;
        let left = match anchor {
            Anchor::Left => at[0],
            Anchor::Middle => at[0] - length / 2.0,
            Anchor::Right => at[0] - length,
        };
        // The baseline of these glyphs is at four fifths of their height.
        let top = at[1] - 0.8 * size.val() as f64;
        for (nth, char) in text.chars().enumerate() {
            let glyph = |char| get_raster(char, FontWeight::Regular, size);
            let Some(glyph) = glyph(char).or_else(|| glyph('?')) else { continue };
            let x = (left + advance * nth as f64).round();
            for (row, line) in glyph.rows().enumerate() {
                for (column, cover) in line.iter().enumerate() {
                    let (x, y) = (x + column as f64, top.round() + row as f64);
                    if x >= 0.0 && y >= 0.0 {
                        self.blend(x as usize, y as usize, colour, f64::from(*cover) / 255.0);
                    }
                }
            }
        }
    }

    /// Lays `colour` over a pixel, if there is such a pixel.
    fn blend(&mut self, x: usize, y: usize, colour: Colour, cover: f64) {
        if x >= self.width || y >= self.height || cover == 0.0 {
            return;
        }
        let pixel = &mut self.pixels[y * self.width + x];
        for (below, above) in pixel.iter_mut().zip(colour) {
            *below = (f64::from(*below) * (1.0 - cover) + f64::from(above) * cover).round() as u8;
        }
    }

    /// A PNG file (W3C, Portable Network Graphics, third edition): 8 bits a sample, truecolour, no filters.
    fn encode(&self) -> io::Result<Vec<u8>> {
        let mut header = Vec::new();
        for side in [self.width, self.height] {
            header.extend((side as u32).to_be_bytes());
        }
        header.extend([8, 2, 0, 0, 0]);
        let mut data = ZlibEncoder::new(Vec::new(), Compression::default());
        for row in self.pixels.chunks(self.width) {
            data.write_all(&[0])?;
            data.write_all(row.as_flattened())?;
        }
        let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
        chunk(*b"IHDR", &header, &mut out);
        chunk(*b"IDAT", &data.finish()?, &mut out);
        chunk(*b"IEND", &[], &mut out);
        Ok(out)
    }
}

/// From `point` to the nearest point between `from` and `to`.
fn distance(point: [f64; 2], from: [f64; 2], to: [f64; 2]) -> f64 {
    let along = [to[0] - from[0], to[1] - from[1]];
    let squared = along[0] * along[0] + along[1] * along[1];
    let offset = [point[0] - from[0], point[1] - from[1]];
    let share = if squared > 0.0 {
        ((offset[0] * along[0] + offset[1] * along[1]) / squared).clamp(0.0, 1.0)
    } else {
        0.0
    };
    (offset[0] - share * along[0]).hypot(offset[1] - share * along[1])
}

fn chunk(kind: [u8; 4], data: &[u8], out: &mut Vec<u8>) {
    out.extend((data.len() as u32).to_be_bytes());
    let start = out.len();
    out.extend(kind);
    out.extend(data);
    // The algorithm is 32 bits wide.
    let crc = checksum(CrcAlgorithm::Crc32IsoHdlc, &out[start..]) as u32;
    out.extend(crc.to_be_bytes());
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Read;

    use super::super::tests::sample;
    use super::*;

    /// The chunks of a PNG file.
    fn chunks(mut bytes: &[u8]) -> Vec<([u8; 4], Vec<u8>)> {
        bytes = bytes.strip_prefix(b"\x89PNG\r\n\x1a\n").unwrap();
        let mut chunks = Vec::new();
        while !bytes.is_empty() {
            let length = u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize;
            let (kind, data) = (bytes[4..8].try_into().unwrap(), bytes[8..8 + length].to_vec());
            let mut again = Vec::new();
            chunk(kind, &data, &mut again);
            assert_eq!(bytes[..length + 12], again);
            chunks.push((kind, data));
            bytes = &bytes[length + 12..];
        }
        chunks
    }

    #[test]
    fn a_file_has_a_picture_of_its_size_in_the_colours_of_its_curves() {
        let chunks = chunks(&png(&sample()).unwrap());
        assert_eq!(chunks.iter().map(|chunk| &chunk.0).collect::<Vec<_>>(), [b"IHDR", b"IDAT", b"IEND"]);
        let side = |at: usize| u32::from_be_bytes(chunks[0].1[at..at + 4].try_into().unwrap()) as usize;
        let (width, height) = (side(0), side(4));
        assert_eq!(
            (width, height),
            ((WIDTH * SCALE) as usize, (Figure::of(&sample()).height * SCALE) as usize)
        );
        let mut pixels = Vec::new();
        flate2::read::ZlibDecoder::new(&chunks[1].1[..]).read_to_end(&mut pixels).unwrap();
        assert_eq!(pixels.len(), (1 + 3 * width) * height);
        for colour in [[0x00, 0x72, 0xb2], [0xd5, 0x5e, 0x00], [0xff; 3]] {
            let rows = pixels.chunks(1 + 3 * width);
            let found = rows.flat_map(|row| row[1..].chunks(3)).filter(|&pixel| pixel == colour).count();
            assert!(found > 1_000, "{colour:?}: {found}");
        }
    }

    #[test]
    fn a_checksum_is_that_of_png() {
        let mut end = Vec::new();
        chunk(*b"IEND", &[], &mut end);
        assert_eq!(end, [0, 0, 0, 0, b'I', b'E', b'N', b'D', 0xae, 0x42, 0x60, 0x82]);
    }

    #[test]
    fn a_stroke_covers_what_is_near_it() {
        let mut canvas = Canvas::new(20, 20);
        canvas.stroke(&[[2.0, 10.0], [18.0, 10.0], [18.0, 2.0]], 1.5, [0; 3]);
        let pixel = |x: usize, y: usize| canvas.pixels[y * 20 + x];
        assert_eq!((pixel(10, 9), pixel(10, 10), pixel(17, 5)), ([0; 3], [0; 3], [0; 3]));
        assert_eq!((pixel(10, 5), pixel(10, 13)), ([0xff; 3], [0xff; 3]));
        // Off the canvas there is nothing to paint.
        canvas.stroke(&[[-50.0, -50.0], [500.0, 500.0]], 1.5, [0; 3]);
        canvas.text([15.0, 5.0], Anchor::Left, Size::Title, [0; 3], "far");
    }
}
