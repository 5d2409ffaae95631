#![allow(clippy::unwrap_used)]

use proptest::prelude::*;

use super::*;

impl Turbo {
    /// As before version 3.
    pub(crate) fn without_parts(self) -> Self {
        Self { parts: None, ..self }
    }

    /// An image of these pixels, RGB.
    pub(crate) fn encode(
        &self,
        pixels: &[u8],
        (width, height): (u32, u32),
        (subsampling, quality, progressive): (i32, i32, bool),
    ) -> Vec<u8> {
        type Compress = unsafe extern "C" fn(
            *mut c_void,
            *const c_uchar,
            c_int,
            c_int,
            c_int,
            c_int,
            *mut *mut c_uchar,
            *mut c_ulong,
            c_int,
            c_int,
            c_int,
        ) -> c_int;
        assert_eq!(pixels.len(), 3 * width as usize * height as usize);
        let flags = if progressive { 16_384 } else { 0 };
        let (mut jpeg, mut length) = (std::ptr::null_mut(), 0);
        // SAFETY: the types are those of turbojpeg.h; the library reads the pixels, and allocates what it writes.
        unsafe {
            let init: unsafe extern "C" fn() -> *mut c_void =
                function(&self._library, "tjInitCompress").unwrap();
            let compress: Compress = function(&self._library, "tjCompress2").unwrap();
            let free: unsafe extern "C" fn(*mut c_uchar) = function(&self._library, "tjFree").unwrap();
            let handle = init();
            let (width, height) = (width as c_int, height as c_int);
            let status = compress(
                handle,
                pixels.as_ptr(),
                width,
                0,
                height,
                TJPF_RGB,
                &mut jpeg,
                &mut length,
                subsampling,
                quality,
                flags,
            );
            assert_eq!(status, 0);
            let bytes = std::slice::from_raw_parts(jpeg, length as usize).to_vec();
            free(jpeg);
            (self.destroy)(handle);
            bytes
        }
    }
}

/// The library, version 3 where it is named; `None` on a host without one.
pub(crate) fn turbo() -> Option<Turbo> {
    let turbo = Turbo::load();
    if std::env::var_os(FILE_VARIABLE).is_some() {
        assert!(turbo.as_ref().is_ok_and(|turbo| turbo.parts.is_some()), "{:?}", turbo.err());
    }
    turbo.ok()
}

/// Pixels with edges and noise.
pub(crate) fn noise((width, height): (u32, u32), seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    let count = 3 * width * height;
    (0..count).map(|i| if i / 40 % 3 == 0 { next() } else { (i / 7) as u8 }).collect()
}

fn decode(
    turbo: &Arc<Turbo>,
    jpeg: &[u8],
    (channels, reduction): (Channels, u32),
    needed: Option<Window>,
) -> Result<(Window, Vec<u8>), String> {
    let mut decompressor = Decompressor::new(turbo).unwrap();
    let header = decompressor.header(jpeg).map_err(|error| error.to_string())?;
    let whole = Window::whole((header.width.div_ceil(reduction), header.height.div_ceil(reduction)));
    let mut pixels = Vec::new();
    let needed = needed.unwrap_or(whole);
    let decoded = decompressor.decompress(jpeg, header, (channels, reduction), needed, &mut pixels);
    decoded.map(|window| (window, pixels)).map_err(|error| error.to_string())
}

/// The pixels of a window within those of another.
fn cut((outer, pixels): &(Window, Vec<u8>), inner: Window) -> Vec<u8> {
    let bytes = pixels.len() / (outer.width as usize * outer.height as usize);
    let lines = (inner.top - outer.top) as usize..(inner.top - outer.top + inner.height) as usize;
    let line = |line: usize| {
        let first = line * outer.width as usize + (inner.left - outer.left) as usize;
        pixels[first * bytes..][..inner.width as usize * bytes].to_vec()
    };
    lines.flat_map(line).collect()
}

/// The start and the length of a part of `0..size`.
fn range(size: u32, (start, length): (u32, u32)) -> (u32, u32) {
    let start = start % size;
    (start, 1 + length % (size - start))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_part_has_the_pixels_of_the_whole_image(
        width in 1_u32..120, height in 1_u32..90, seed: u64, subsampling in 0_i32..7, quality in 1_i32..=100,
        progressive: bool, gray: bool, reduction in prop::sample::select(vec![1, 1, 2, 4, 8]),
        across: (u32, u32), down: (u32, u32), changed in prop::option::of((any::<usize>(), 1_u8..)),
    ) {
        let Some(turbo) = turbo() else { return Ok(()) };
        let turbo = Arc::new(turbo);
        let size = (width, height);
        // Version 2 has no 4:4:1.
        let subsampling = if turbo.parts.is_some() { subsampling } else { subsampling % 6 };
        let mut jpeg = turbo.encode(&noise(size, seed), size, (subsampling, quality, progressive));
        if let Some((place, flipped)) = changed {
            let place = place % jpeg.len();
            jpeg[place] ^= flipped;
        }
        let how = (if gray { Channels::Gray } else { Channels::Rgb }, reduction);
        // Its header, or any part of it, may be damaged.
        let Ok(whole) = decode(&turbo, &jpeg, how, None) else { return Ok(()) };
        let (left, width) = range(whole.0.width, across);
        let (top, height) = range(whole.0.height, down);
        let needed = Window { left, top, width, height };
        let part = decode(&turbo, &jpeg, how, Some(needed)).unwrap();
        prop_assert_eq!(cut(&part, needed), cut(&whole, needed), "{:?} of {:?}", part.0, whole.0);
    }
}

#[test]
fn lossless_images_are_refused() {
    type Set = unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int;
    type Compress = unsafe extern "C" fn(
        *mut c_void,
        *const c_uchar,
        c_int,
        c_int,
        c_int,
        c_int,
        *mut *mut c_uchar,
        *mut usize,
    ) -> c_int;
    // Version 2 does not encode them.
    let Some(turbo) = turbo().filter(|turbo| turbo.parts.is_some()) else { return };
    let (mut jpeg, mut length) = (std::ptr::null_mut(), 0);
    let pixels = noise((64, 64), 1);
    // SAFETY: the types are those of turbojpeg.h; the library reads the pixels, and allocates what it writes.
    let jpeg = unsafe {
        let init: unsafe extern "C" fn(c_int) -> *mut c_void = function(&turbo._library, "tj3Init").unwrap();
        let set: Set = function(&turbo._library, "tj3Set").unwrap();
        let compress: Compress = function(&turbo._library, "tj3Compress8").unwrap();
        let free: unsafe extern "C" fn(*mut c_uchar) = function(&turbo._library, "tjFree").unwrap();
        let handle = init(0);
        assert_eq!(set(handle, TJPARAM_LOSSLESS, 1), 0);
        assert_eq!(compress(handle, pixels.as_ptr(), 64, 0, 64, TJPF_RGB, &mut jpeg, &mut length), 0);
        let bytes = std::slice::from_raw_parts(jpeg, length).to_vec();
        free(jpeg);
        (turbo.destroy)(handle);
        bytes
    };
    let error = decode(&Arc::new(turbo), &jpeg, (Channels::Rgb, 2), None).unwrap_err();
    assert!(error.contains("it is lossless"), "{error}");
}

#[test]
fn damage_is_found_above_a_part_and_at_the_end() {
    let Some(turbo) = turbo() else { return };
    let (turbo, size) = (Arc::new(turbo), (96, 96));
    for progressive in [false, true] {
        let jpeg = turbo.encode(&noise(size, 5), size, (2, 90, progressive));
        let read = |jpeg: &[u8], top| {
            let needed = Window { left: 40, top, width: 8, height: 8 };
            decode(&turbo, jpeg, (Channels::Rgb, 1), Some(needed)).map(|_| ())
        };
        assert_eq!(read(&jpeg, 0), Ok(()));
        // Other data may follow the end.
        assert_eq!(read(&[&jpeg[..], &[0; 8_192]].concat(), 0), Ok(()));
        for cut in [2, 3, 10, 1_000] {
            let error = read(&jpeg[..jpeg.len() - cut], 0).unwrap_err();
            assert!(error.contains("Premature end of JPEG file"), "{error}");
        }
        // The end of the image, and of the entropy-coded data, in the midst of it.
        let mut jpeg = jpeg;
        let place = jpeg.len() / 2;
        jpeg[place..place + 2].copy_from_slice(&END);
        assert!(read(&jpeg, 88).is_err());
    }
}

#[test]
fn a_missing_library_is_reported_with_its_package() {
    let Err(error) = Turbo::load_from(PathBuf::from("/nowhere/libturbojpeg.so.0")) else {
        panic!("there is one")
    };
    let message = error.to_string();
    assert!(message.contains("/nowhere/libturbojpeg.so.0"), "{message}");
    assert!(message.contains("No such file") && message.contains("libturbojpeg0"), "{message}");
}

/// Of 17 x 9 pixels, by Pillow.
const BASELINE: &[u8] = include_bytes!("../../../../tests/properties/src/image/baseline.jpg");

/// Decodes an image; `None` without the library, which is not on every host.
fn decoded(jpeg: &[u8]) -> Option<Result<Vec<u8>, String>> {
    let decoded = decode(&Arc::new(turbo()?), jpeg, (Channels::Rgb, 1), None);
    Some(decoded.map(|(window, pixels)| {
        assert_eq!(window, Window::whole((17, 9)));
        pixels
    }))
}

/// The offset behind a marker.
fn behind(marker: u8) -> usize {
    BASELINE.windows(2).position(|bytes| bytes == [0xff, marker]).unwrap() + 2
}

#[test]
fn harmless_warnings_keep_the_pixels() {
    let Some(Ok(pixels)) = decoded(BASELINE) else { return };
    let changed = |at: usize, byte: u8| {
        let mut jpeg = BASELINE.to_vec();
        jpeg[at] = byte;
        decoded(&jpeg).unwrap()
    };
    // The major version of JFIF, and the end of the spectral selection of a sequential scan.
    let scan = behind(0xda);
    let components = usize::from(BASELINE[scan + 2]);
    assert_eq!(changed(behind(0xe0) + 7, 2).as_ref(), Ok(&pixels));
    assert_eq!(changed(scan + 4 + 2 * components, 0).as_ref(), Ok(&pixels));
    // A byte between two segments.
    let place = behind(0xdb) - 2;
    let spoilt = [&BASELINE[..place], &[0], &BASELINE[place..]].concat();
    assert_eq!(decoded(&spoilt).unwrap().as_ref(), Ok(&pixels));
    for cut in 1..40 {
        for jpeg in [BASELINE, &spoilt[..]] {
            let error = decoded(&jpeg[..jpeg.len() - cut]).unwrap().unwrap_err();
            assert!(error.starts_with("the JPEG image is damaged"), "{cut}: {error}");
        }
    }
}

/// An image of these sampling factors, all of whose blocks are of one level each.
fn sampled((width, height): (u32, u32), factors: &[(u32, u32)]) -> Vec<u8> {
    let mut jpeg = vec![0xff, 0xd8];
    let mut segment = |marker: u8, content: &[u8]| {
        jpeg.extend([0xff, marker]);
        jpeg.extend((content.len() as u16 + 2).to_be_bytes());
        jpeg.extend_from_slice(content);
    };
    segment(0xdb, &[&[0][..], &[24; 64]].concat());
    let [high, low] = (height as u16).to_be_bytes();
    let [left, right] = (width as u16).to_be_bytes();
    let components = (1..).zip(factors).flat_map(|(id, &(across, down))| [id, (across << 4 | down) as u8, 0]);
    let frame = [8, high, low, left, right, factors.len() as u8].into_iter().chain(components);
    segment(0xc0, &frame.collect::<Vec<u8>>());
    // Differences of no bits and of 5: codes of two bits. Then only the end of a block: a code of one bit.
    segment(0xc4, &[&[0, 0, 2][..], &[0; 14], &[0, 5]].concat());
    segment(0xc4, &[&[0x10, 1][..], &[0; 15], &[0]].concat());
    let scan = [factors.len() as u8].into_iter().chain((1..).zip(factors).flat_map(|(id, _)| [id, 0]));
    segment(0xda, &scan.chain([0, 63, 0]).collect::<Vec<u8>>());
    let most = |of: fn(&(u32, u32)) -> u32| factors.iter().map(of).max().unwrap();
    let units = width.div_ceil(8 * most(|f| f.0)) * height.div_ceil(8 * most(|f| f.1));
    let blocks = factors.iter().map(|(across, down)| across * down).sum::<u32>() * units;
    // Differences of 5 bits, then those back.
    let bits = (0..blocks).flat_map(|block| {
        let value = [24_u32, 7][block as usize / factors.len() % 2];
        [0, 1].into_iter().chain((0..5).rev().map(move |bit| value >> bit & 1)).chain([0])
    });
    let bits: Vec<u32> = bits.collect();
    for byte in bits.chunks(8) {
        let value = byte.iter().chain(std::iter::repeat(&1)).take(8).fold(0, |value, bit| value << 1 | bit);
        jpeg.push(value as u8);
        if value == 0xff {
            jpeg.push(0);
        }
    }
    jpeg.extend(END);
    jpeg
}

#[test]
fn images_of_any_sampling_have_parts() {
    let Some(turbo) = turbo().map(Arc::new) else { return };
    let samplings: [&[(u32, u32)]; 9] = [
        &[(1, 1), (1, 1), (1, 1)],
        &[(2, 1), (2, 1), (2, 1)],
        &[(3, 1), (3, 1), (3, 1)],
        &[(1, 2), (1, 2), (1, 2)],
        &[(2, 2), (2, 1), (2, 1)],
        &[(2, 2), (1, 2), (1, 2)],
        &[(2, 2)],
        // Unusual ones, which are decoded whole.
        &[(2, 2), (2, 1), (1, 1)],
        &[(2, 2), (1, 1), (1, 1), (1, 1)],
    ];
    for factors in samplings {
        let jpeg = sampled((150, 70), factors);
        for reduction in [1, 2, 4, 8] {
            let how = (Channels::Rgb, reduction);
            let whole =
                decode(&turbo, &jpeg, how, None).unwrap_or_else(|error| panic!("{factors:?}: {error}"));
            for left in 0..whole.0.width - 3 {
                let needed = Window { left, top: 2, width: 3, height: 4 };
                let part = decode(&turbo, &jpeg, how, Some(needed)).unwrap();
                assert_eq!(cut(&part, needed), cut(&whole, needed), "{factors:?} at {left}");
            }
        }
    }
}

#[test]
fn inks_become_colours() {
    let mut pixels = vec![255, 0, 255, 255, 255, 255, 255, 0, 100, 200, 50, 255];
    of_cmyk(&mut pixels, Channels::Rgb);
    assert_eq!(pixels, [255, 0, 255, 0, 0, 0, 100, 200, 50]);
    let mut pixels = vec![200, 200, 200, 255, 255, 255, 255, 51];
    of_cmyk(&mut pixels, Channels::Gray);
    assert_eq!(pixels, [200, 51]);
}
