//! Images: any bytes are an image or an error. The result depends on nothing but the bytes, the specification and the random
//! numbers: not on images read before, nor on what the memory for it held.

use std::sync::{Arc, OnceLock};

use image_webp::{ColorType, WebPEncoder};
use millstream_batch::Dtype;
use millstream_images::{
    Channels, Crop, Decode, ImageReader, ImageSpec, Jitter, LargeImages, Layout, Normalize, Turbo,
    TurboError, is_image,
};

use crate::input::Input;

/// Of 17 x 9 pixels, by Pillow.
const BASELINE: &[u8] = include_bytes!("image/baseline.jpg");
const PROGRESSIVE: &[u8] = include_bytes!("image/progressive.jpg");
/// Of 90 x 70 pixels, by Pillow: wide enough for parts that do not begin at the left border.
const WIDE: [&[u8]; 3] = [
    include_bytes!("image/wide-420.jpg"),
    include_bytes!("image/wide-444.jpg"),
    include_bytes!("image/wide-cmyk.jpg"),
];

/// Without the library, which is not on every host, JPEG images are errors.
fn turbo() -> Result<Arc<Turbo>, Arc<TurboError>> {
    static TURBO: OnceLock<Result<Arc<Turbo>, Arc<TurboError>>> = OnceLock::new();
    TURBO.get_or_init(|| Turbo::load().map(Arc::new).map_err(Arc::new)).clone()
}

/// Made of the first three bytes.
fn spec(input: &mut Input<'_>) -> ImageSpec {
    let [kind, size, crop] = std::array::from_fn(|_| input.byte());
    let bit = |place: u8| kind >> place & 1 == 1;
    let channels = if bit(0) { Channels::Gray } else { Channels::Rgb };
    let dtype = ImageSpec::DTYPES[usize::from(kind >> 1 & 3)];
    let normalize = Normalize { mean: vec![0.5; channels.count()], std: vec![0.25; channels.count()] };
    let jitter = Jitter { brightness: 0.5, contrast: 0.5, saturation: 0.5, hue: 0.5 };
    ImageSpec {
        height: u32::from(size >> 4) + 1,
        width: u32::from(size & 15) + 1,
        channels,
        crop: match crop % 3 {
            0 => Crop::None,
            1 => Crop::Center { fraction: f32::from(crop / 3 + 1) / 86.0 },
            _ => Crop::RandomResized { scale: [0.01, 1.0], ratio: [0.1, 10.0] },
        },
        flip: bit(3),
        jitter: if bit(4) { jitter } else { Jitter::default() },
        normalize: (bit(5) && dtype != Dtype::Uint8).then_some(normalize),
        layout: if bit(6) { Layout::Nchw } else { Layout::Nhwc },
        dtype,
        decode: if bit(7) { Decode::Fast } else { Decode::Exact },
        max_pixels: 1 << 14,
        average_bytes: None,
    }
}

fn reader(spec: &Arc<ImageSpec>) -> ImageReader {
    ImageReader::new(spec, turbo(), &Arc::new(LargeImages::new(1)))
}

/// Reads the bytes as an image, several times.
pub fn check(data: &[u8]) {
    let mut input = Input(data);
    let spec = Arc::new(spec(&mut input));
    let bytes = input.0;
    let row = usize::try_from(spec.column_kind().row_bytes()).unwrap();
    let read = |reader: &mut ImageReader, bytes: &[u8], filling: u8| {
        let (mut out, mut state) = (vec![filling; row], 7_u64);
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(data.len() as u64);
            state ^ state >> 29
        };
        reader.read(bytes, &mut random, &mut out).map(|()| out).map_err(|error| error.to_string())
    };
    let mut first_reader = reader(&spec);
    let first = read(&mut first_reader, bytes, 0x55);
    // An image of another size, which is intact.
    let intact = read(&mut first_reader, BASELINE, 0);
    assert_eq!(intact, read(&mut reader(&spec), BASELINE, 0), "an intact image after this one");
    assert_eq!(first, read(&mut first_reader, bytes, 0xaa), "after another image");
    assert_eq!(first, read(&mut reader(&spec), bytes, 0), "with another reader");
    assert!(first.is_err() || is_image(bytes), "an image of no known format");
}

/// Images of all formats, with different choices.
pub fn seeds() -> Vec<Vec<u8>> {
    let pixels: Vec<u8> = (0..17 * 9 * 4).map(|value: u32| (value * value) as u8).collect();
    let mut images = vec![BASELINE.to_vec(), PROGRESSIVE.to_vec()];
    images.extend(WIDE.map(<[u8]>::to_vec));
    for (color, channels) in [
        (png::ColorType::Rgb, 3),
        (png::ColorType::Rgba, 4),
        (png::ColorType::Grayscale, 1),
        (png::ColorType::GrayscaleAlpha, 2),
    ] {
        let mut bytes = Vec::new();
        let mut encoder = png::Encoder::new(&mut bytes, 17, 9);
        encoder.set_color(color);
        encoder.write_header().unwrap().write_image_data(&pixels[..17 * 9 * channels]).unwrap();
        images.push(bytes);
    }
    for (color, channels) in [(ColorType::Rgb8, 3), (ColorType::Rgba8, 4)] {
        let mut bytes = Vec::new();
        WebPEncoder::new(&mut bytes).encode(&pixels[..17 * 9 * channels], 17, 9, color).unwrap();
        images.push(bytes);
    }
    let choices = [[0x00, 0x88, 0], [0xff, 0x12, 2], [0x94, 0xf3, 1], [0x4a, 0x00, 5]];
    let seeds = images.iter().zip(choices.iter().cycle());
    seeds.map(|(image, choices)| [choices.as_slice(), image].concat()).collect()
}

/// The first bytes of formats, and names of their parts.
pub fn dictionary() -> Vec<Vec<u8>> {
    let words: [&[u8]; 14] = [
        b"\xff\xd8\xff",
        b"\xff\xc0",
        b"\xff\xc2",
        b"\xff\xc4",
        b"\xff\xda",
        b"\xff\xdd",
        b"\xff\xee",
        b"\x89PNG\r\n\x1a\n",
        b"IHDR",
        b"IDAT",
        b"PLTE",
        b"RIFF",
        b"WEBPVP8L",
        b"VP8X",
    ];
    words.map(<[u8]>::to_vec).to_vec()
}

#[cfg(test)]
mod tests {
    use millstream_images::ImageError;

    use super::*;

    #[test]
    fn all_seeds_are_images() {
        for (number, seed) in seeds().iter().enumerate() {
            let mut input = Input(seed);
            let spec = Arc::new(spec(&mut input));
            let mut out = vec![0; usize::try_from(spec.column_kind().row_bytes()).unwrap()];
            match reader(&spec).read(input.0, &mut || 1, &mut out) {
                Ok(()) => {}
                // The host has no libjpeg-turbo.
                Err(ImageError::NoDecoder(_)) if number < 2 + WIDE.len() => {}
                Err(error) => panic!("seed {number}: {error}"),
            }
        }
    }
}
