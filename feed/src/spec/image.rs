//! Columns of images.
//!
//! ```toml
//! [columns.photo]
//! kind = "image"
//! column = "image/encoded"
//! size = [224, 224]
//! crop = "random_resized"
//! scale = [0.08, 1.0]
//! ratio = [0.75, 1.3333]
//! flip = true
//! jitter = { brightness = 0.4, contrast = 0.4, saturation = 0.4, hue = 0.1 }
//! mean = [0.485, 0.456, 0.406]
//! std = [0.229, 0.224, 0.225]
//! layout = "NCHW"
//! dtype = "float32"
//! ```

use millstream_batch::Dtype;
use millstream_document::section::Section;
use millstream_document::tree::{Node, Value};
use millstream_images::{Channels, Crop, Decode, ImageSpec, Jitter, Layout, Normalize};

/// The maximum height and width of a result.
const MAX_SIZE: u64 = 16_384;

/// The maximum of `max_pixels`, and its default: a frame of 4K video.
const MOST_PIXELS: u32 = 1 << 28;
const USUAL_PIXELS: u32 = 1 << 23;

/// The usual part of an image in evaluation: 224 of 256 pixels.
const USUAL_FRACTION: f32 = 0.875;

const COLORS: [(&str, Channels); 2] = [("rgb", Channels::Rgb), ("gray", Channels::Gray)];
const LAYOUTS: [(&str, Layout); 2] = [("NHWC", Layout::Nhwc), ("NCHW", Layout::Nchw)];
const DECODES: [(&str, Decode); 2] = [("exact", Decode::Exact), ("fast", Decode::Fast)];

/// The kinds of crops.
#[derive(Clone, Copy, PartialEq)]
enum CropKind {
    None,
    Center,
    RandomResized,
}

const CROPS: [(&str, CropKind); 3] =
    [("none", CropKind::None), ("center", CropKind::Center), ("random_resized", CropKind::RandomResized)];

/// Reads the keys of an image column, without those that all columns have.
pub(super) fn read(column: &mut Section<'_>) -> Option<ImageSpec> {
    let size = column.required("size", "the size of the result, such as 224 or [height, width]");
    let size = size.and_then(|node| read_size(column, node));
    let channels = column.choice("color", &COLORS).unwrap_or(Channels::Rgb);
    let crop = read_crop(column);
    let dtype = column.choice("dtype", &ImageSpec::DTYPES.map(|dtype| (dtype.name(), dtype)));
    let dtype = dtype.unwrap_or(Dtype::Uint8);
    let normalize = read_normalize(column, channels, dtype);
    let flip = column.flag("flip").unwrap_or(false);
    let jitter = read_jitter(column);
    if channels == Channels::Gray && (jitter.saturation > 0.0 || jitter.hue > 0.0) {
        column.error("jitter", "gray images have no saturation and no hue");
    }
    let layout = column.choice("layout", &LAYOUTS).unwrap_or(Layout::Nhwc);
    let decode = column.choice("decode", &DECODES).unwrap_or(Decode::Exact);
    let max_pixels = column.whole_u32("max_pixels", 1..=MOST_PIXELS).unwrap_or(USUAL_PIXELS);
    let average_bytes = column.whole_u32("average_bytes", 1..=1 << 25);
    // After all keys have been read: those that are not are reported as unknown.
    let (height, width) = size?;
    Some(ImageSpec {
        height,
        width,
        channels,
        crop,
        flip,
        jitter,
        normalize,
        layout,
        dtype,
        decode,
        max_pixels,
        average_bytes,
    })
}

/// Reads one size for both dimensions, or height and width.
fn read_size(column: &Section<'_>, node: &Node) -> Option<(u32, u32)> {
    let whole = |node: &Node| column.as_whole(node, 1..=MAX_SIZE).and_then(|size| u32::try_from(size).ok());
    if !matches!(node.value, Value::List(_)) {
        return whole(node).map(|size| (size, size));
    }
    match column.as_list(node, "sizes")? {
        [height, width] => whole(height).zip(whole(width)),
        _ => {
            column.error("size", "expected one size, or [height, width]");
            None
        }
    }
}

fn read_crop(column: &mut Section<'_>) -> Crop {
    let kind = column.choice("crop", &CROPS).unwrap_or(CropKind::None);
    for (keys, of) in [
        (["scale", "ratio"].as_slice(), CropKind::RandomResized),
        (["fraction"].as_slice(), CropKind::Center),
    ] {
        for key in keys.iter().filter(|key| of != kind && column.has(key)) {
            let name = CROPS.iter().find(|(_, kind)| *kind == of).map_or("", |(name, _)| name);
            column.error(key, format!("`{key}` is for `crop` = \"{name}\""));
        }
    }
    let scale = read_range(column, "scale", 1.0);
    let ratio = read_range(column, "ratio", 100.0);
    let fraction = column.node("fraction").and_then(|node| column.as_constant(node, true));
    if fraction.is_some_and(|fraction| fraction > 1.0) {
        column.error("fraction", "expected a number above 0 and at most 1");
    }
    match kind {
        CropKind::None => Crop::None,
        CropKind::Center => Crop::Center { fraction: fraction.unwrap_or(USUAL_FRACTION) },
        CropKind::RandomResized => Crop::RandomResized {
            scale: scale.unwrap_or([0.08, 1.0]),
            ratio: ratio.unwrap_or([3.0 / 4.0, 4.0 / 3.0]),
        },
    }
}

/// Reads a range of positive numbers of at most `most`.
fn read_range(column: &mut Section<'_>, key: &'static str, most: f32) -> Option<[f32; 2]> {
    let node = column.node(key)?;
    let numbers = read_numbers(column, node, true)?;
    match numbers[..] {
        [least, greatest] if least <= greatest && greatest <= most => Some([least, greatest]),
        _ => {
            column.error(key, format!("expected two numbers, ascending, of at most {most}"));
            None
        }
    }
}

fn read_numbers(column: &Section<'_>, node: &Node, positive: bool) -> Option<Vec<f32>> {
    let numbers = column.as_list(node, "numbers")?;
    let read = |node| match positive {
        true => column.as_constant(node, true),
        false => column.as_number(node).map(|number| number as f32),
    };
    numbers.iter().map(read).collect()
}

fn read_normalize(column: &mut Section<'_>, channels: Channels, dtype: Dtype) -> Option<Normalize> {
    let mut read = |key: &'static str, positive: bool| {
        let node = column.node(key)?;
        if dtype == Dtype::Uint8 {
            column.error(key, format!("`{key}` scales numbers; set `dtype` to a float"));
        }
        let numbers = read_numbers(column, node, positive)?;
        if numbers.len() != channels.count() {
            column.error(
                key,
                format!("expected {}, one per channel, found {}", channels.count(), numbers.len()),
            );
            return None;
        }
        Some(numbers)
    };
    let (mean, std) = (read("mean", false), read("std", true));
    if mean.is_none() && std.is_none() {
        return None;
    }
    let usual = |number: f32| vec![number; channels.count()];
    Some(Normalize { mean: mean.unwrap_or_else(|| usual(0.0)), std: std.unwrap_or_else(|| usual(1.0)) })
}

fn read_jitter(column: &mut Section<'_>) -> Jitter {
    let Some(node) = column.node("jitter") else { return Jitter::default() };
    let Some(mut jitter) = column.as_section(node, "`jitter`") else { return Jitter::default() };
    let mut distance = |key: &'static str, most: f32| {
        let Some(node) = jitter.node(key) else { return 0.0 };
        let number = jitter.as_constant(node, false).unwrap_or(0.0);
        if !(0.0..=most).contains(&number) {
            jitter.error(key, format!("expected a number from 0 to {most}"));
        }
        number
    };
    let read = Jitter {
        brightness: distance("brightness", 1.0),
        contrast: distance("contrast", 1.0),
        saturation: distance("saturation", 1.0),
        hue: distance("hue", 0.5),
    };
    jitter.finish();
    read
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::Path;

    use millstream_batch::{ColumnKind, Dtype};

    use super::*;
    use crate::spec::FeedSpec;

    fn parse(keys: &str) -> Result<ImageSpec, String> {
        let text = format!(
            "[data]\ntrain = ['x.parquet']\nbatch_size = 4\n[columns]\nx = {{ kind = 'image', {keys} }}\n"
        );
        let spec = FeedSpec::parse(&text, Path::new("feed.toml")).map_err(|error| error.to_string())?;
        let again = FeedSpec::parse(&spec.text, Path::new("feed.toml")).unwrap();
        assert_eq!(again.columns, spec.columns, "{}", spec.text);
        let column = &spec.columns[0];
        let image = column.image.clone().unwrap();
        assert_eq!(image.column_kind(), column.kind);
        Ok(image)
    }

    #[test]
    fn keys_have_defaults() {
        let image = parse("size = 224").unwrap();
        assert_eq!(image.column_kind(), ColumnKind::Fixed { dtype: Dtype::Uint8, shape: vec![224, 224, 3] });
        assert_eq!((image.crop, image.flip, image.jitter), (Crop::None, false, Jitter::default()));
        assert_eq!((image.max_pixels, image.average_bytes), (1 << 23, None));
        let crop = parse("size = 8, crop = 'random_resized'").unwrap().crop;
        assert_eq!(crop, Crop::RandomResized { scale: [0.08, 1.0], ratio: [0.75, 4.0 / 3.0] });
        assert_eq!(parse("size = 8, crop = 'center'").unwrap().crop, Crop::Center { fraction: 0.875 });
    }

    #[test]
    fn all_keys_are_read() {
        let keys = "size = [3, 5], crop = 'center', fraction = 1, flip = true, layout = 'NCHW', dtype = 'float16', \
                    color = 'gray', mean = [-1.5], std = [2], jitter = { brightness = 0.5, contrast = 1 }, \
                    decode = 'fast', max_pixels = 100, average_bytes = 7";
        let expected = ImageSpec {
            height: 3,
            width: 5,
            channels: Channels::Gray,
            crop: Crop::Center { fraction: 1.0 },
            flip: true,
            jitter: Jitter { brightness: 0.5, contrast: 1.0, ..Jitter::default() },
            normalize: Some(Normalize { mean: vec![-1.5], std: vec![2.0] }),
            layout: Layout::Nchw,
            dtype: Dtype::Float16,
            decode: Decode::Fast,
            max_pixels: 100,
            average_bytes: Some(7),
        };
        assert_eq!(parse(keys).unwrap(), expected);
    }

    #[test]
    fn mistakes_are_errors() {
        for (keys, message) in [
            ("crop = 'center'", "size"),
            ("size = [1, 2, 3]", "expected one size, or [height, width]"),
            ("size = 0", "from 1 to 16384, found 0"),
            ("size = 8, scale = [0.1, 1]", "`scale` is for `crop` = \"random_resized\""),
            ("size = 8, crop = 'random_resized', fraction = 0.5", "`fraction` is for `crop` = \"center\""),
            ("size = 8, crop = 'random_resized', scale = [0.5, 0.1]", "two numbers, ascending, of at most 1"),
            ("size = 8, crop = 'center', fraction = 1.5", "above 0 and at most 1"),
            ("size = 8, mean = [0.5, 0.5, 0.5]", "set `dtype` to a float"),
            ("size = 8, dtype = 'float32', std = [0.5]", "expected 3, one per channel, found 1"),
            ("size = 8, dtype = 'int64'", "int64"),
            ("size = 8, jitter = { hue = 0.6 }", "from 0 to 0.5"),
            ("size = 8, color = 'gray', jitter = { hue = 0.1 }", "no saturation and no hue"),
            ("size = 8, missing = 1", "no `missing`"),
            ("size = 8, shape = [2]", "shape"),
        ] {
            let error = parse(keys).unwrap_err();
            assert!(error.contains(message), "{keys}: {error}");
        }
    }
}
