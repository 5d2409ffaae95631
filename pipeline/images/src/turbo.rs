//! libjpeg-turbo of the host, by the functions of its TurboJPEG interface (version 2, which later ones keep).
//!
//! Loaded at run time and never linked, as CUDA is: a host without JPEG images needs no library.
//!
//! Version 3 can decode a part of an image: the entropy-coded data above and beside it is read, but not transformed to pixels, and
//! that below it is not read. The pixels are those of the whole image, if the part is a little larger than what is used of it
//! ([`part`]). Damage below the part is not found, except a missing end of the image.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_ulong, c_void};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::Arc;

use crate::ImageError;
use crate::crop::Window;
use crate::spec::Channels;

/// The library's file name, the same since version 1.2.
const FILE: &str = "libturbojpeg.so.0";

/// The environment variable that names the library's file, where it is not the system's.
const FILE_VARIABLE: &str = "MILLSTREAM_TURBOJPEG";

/// The suggested fix if it is missing.
const REMEDY: &str = "install package libturbojpeg0 (Debian, Ubuntu) or turbojpeg (Fedora, RHEL)";

/// Why libjpeg-turbo cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TurboError {
    /// The library cannot be loaded.
    #[error("libjpeg-turbo, which decodes JPEG images, cannot be loaded: {file}: {reason}; {REMEDY}")]
    Missing {
        /// The file that was tried.
        file: String,
        /// The loader's message.
        reason: String,
    },
    /// The library lacks a function.
    #[error("libjpeg-turbo ({file}) has no function {function}: it is older than version 2.0; {REMEDY}")]
    Function {
        /// The library's file.
        file: String,
        /// The missing function.
        function: &'static str,
    },
}

/// A decompressor of the library.
type Handle = NonNull<c_void>;

// Constants of turbojpeg.h.
const TJPF_RGB: c_int = 0;
const TJPF_GRAY: c_int = 6;
const TJPF_CMYK: c_int = 11;
const TJCS_CMYK: c_int = 3;
const TJCS_YCCK: c_int = 4;
const TJFLAG_ACCURATEDCT: c_int = 4_096;
const TJFLAG_LIMITSCANS: c_int = 32_768;
const TJERR_WARNING: c_int = 0;
const TJPARAM_SUBSAMP: c_int = 4;
const TJPARAM_JPEGWIDTH: c_int = 5;
const TJPARAM_JPEGHEIGHT: c_int = 6;
const TJPARAM_PRECISION: c_int = 7;
const TJPARAM_COLORSPACE: c_int = 8;
const TJPARAM_PROGRESSIVE: c_int = 12;
const TJPARAM_SCANLIMIT: c_int = 13;
const TJPARAM_LOSSLESS: c_int = 15;

/// Multiples of the width in pixels of a minimum coded unit, by kind of subsampling: 4:4:4, 4:2:2, 4:2:0, grey, 4:4:0, 4:1:1, 4:4:1.
/// Images of 4:4:4 may be coded with factors of 1, 2 or 3, of 4:4:0 with 1 or 2.
const MCU_WIDTHS: [u32; 7] = [48, 16, 16, 8, 16, 32, 8];

/// The scans of a progressive image after which it is refused, as `TJFLAG_LIMITSCANS` sets it: a small file may have many,
/// and each takes time.
const MAX_SCANS: c_int = 500;

/// The pixels at the left and right borders of a part which differ from those of the whole image: colours are interpolated with
/// those of the neighbours.
const BORDER: u32 = 2;

/// The width of a part from which colours are interpolated as in the whole image. The library does not interpolate those of narrow images.
const INTERPOLATED_WIDTH: u32 = 16;

/// Warnings that leave all pixels intact, by parts of their texts (jerror.h). Other warnings report lost data.
const HARMLESS: [&str; 6] = [
    "extraneous bytes before marker",
    "Unknown Adobe color transform",
    "unknown JFIF revision",
    "Inconsistent progression sequence",
    "Invalid SOS parameters for sequential JPEG",
    "bad ICC marker",
];

/// The error of version 2 about a header with unusual sampling, which is complete and can be decoded.
const UNUSUAL_SAMPLING: &str = "Could not determine subsampling type";

/// The width or the height from which each of the library's factors, which are eighths, gives another size.
const REDUCED_SIZE: u32 = 16;

/// The end of an image, and the bytes behind it within which it is searched.
const END: [u8; 2] = [0xff, 0xd9];
const END_WITHIN: usize = 4_096;

/// The loaded library.
pub struct Turbo {
    init: unsafe extern "C" fn() -> *mut c_void,
    header: unsafe extern "C" fn(
        *mut c_void,
        *const c_uchar,
        c_ulong,
        *mut c_int,
        *mut c_int,
        *mut c_int,
        *mut c_int,
    ) -> c_int,
    decompress: unsafe extern "C" fn(
        *mut c_void,
        *const c_uchar,
        c_ulong,
        *mut c_uchar,
        c_int,
        c_int,
        c_int,
        c_int,
        c_int,
    ) -> c_int,
    error_text: unsafe extern "C" fn(*mut c_void) -> *mut c_char,
    error_code: unsafe extern "C" fn(*mut c_void) -> c_int,
    destroy: unsafe extern "C" fn(*mut c_void) -> c_int,
    /// `None` before version 3.
    parts: Option<Parts>,
    /// Keeps the functions valid.
    _library: libloading::Library,
}

/// The functions of version 3, which decode a part of an image.
struct Parts {
    header: unsafe extern "C" fn(*mut c_void, *const c_uchar, usize) -> c_int,
    get: unsafe extern "C" fn(*mut c_void, c_int) -> c_int,
    set: unsafe extern "C" fn(*mut c_void, c_int, c_int) -> c_int,
    set_scale: unsafe extern "C" fn(*mut c_void, Scale) -> c_int,
    set_region: unsafe extern "C" fn(*mut c_void, TurboRegion) -> c_int,
    decompress: unsafe extern "C" fn(*mut c_void, *const c_uchar, usize, *mut c_uchar, c_int, c_int) -> c_int,
}

/// `tjscalingfactor` of turbojpeg.h.
#[repr(C)]
struct Scale {
    numerator: c_int,
    denominator: c_int,
}

/// `tjregion` of turbojpeg.h.
#[repr(C)]
struct TurboRegion {
    left: c_int,
    top: c_int,
    width: c_int,
    height: c_int,
}

/// The size and the colours of a JPEG image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JpegHeader {
    pub(crate) width: u32,
    pub(crate) height: u32,
    is_cmyk: bool,
    /// A multiple of the width of a minimum coded unit; `None` if its subsampling is unusual.
    mcu_width: Option<u32>,
}

/// A decompressor of one image, for one thread at a time.
pub(crate) struct Decompressor {
    turbo: Arc<Turbo>,
    handle: Handle,
}

// SAFETY: the library has no state beside that of a decompressor, which one thread uses at a time.
unsafe impl Send for Decompressor {}

impl Turbo {
    /// Loads the library that the environment variable `MILLSTREAM_TURBOJPEG` names, or else that of the system.
    ///
    /// # Errors
    /// There is no such library, or it lacks a function.
    pub fn load() -> Result<Self, TurboError> {
        Self::load_from(std::env::var_os(FILE_VARIABLE).map_or_else(|| PathBuf::from(FILE), PathBuf::from))
    }

    fn load_from(file: PathBuf) -> Result<Self, TurboError> {
        // SAFETY: the library has no initializers.
        let library = unsafe { libloading::Library::new(&file) }.map_err(|error| TurboError::Missing {
            file: file.display().to_string(),
            reason: error.source().map_or_else(|| error.to_string(), ToString::to_string),
        })?;
        let lacks = |function| TurboError::Function { file: file.display().to_string(), function };
        // SAFETY, for each: the type is that of the function in turbojpeg.h.
        Ok(Self {
            // SAFETY: as above.
            init: unsafe { function(&library, "tjInitDecompress") }.map_err(lacks)?,
            // SAFETY: as above.
            header: unsafe { function(&library, "tjDecompressHeader3") }.map_err(lacks)?,
            // SAFETY: as above.
            decompress: unsafe { function(&library, "tjDecompress2") }.map_err(lacks)?,
            // SAFETY: as above.
            error_text: unsafe { function(&library, "tjGetErrorStr2") }.map_err(lacks)?,
            // SAFETY: as above.
            error_code: unsafe { function(&library, "tjGetErrorCode") }.map_err(lacks)?,
            // SAFETY: as above.
            destroy: unsafe { function(&library, "tjDestroy") }.map_err(lacks)?,
            parts: Parts::of(&library).ok(),
            _library: library,
        })
    }
}

impl Parts {
    fn of(library: &libloading::Library) -> Result<Self, &'static str> {
        // SAFETY, for each: the type is that of the function in turbojpeg.h.
        Ok(Self {
            // SAFETY: as above.
            header: unsafe { function(library, "tj3DecompressHeader") }?,
            // SAFETY: as above.
            get: unsafe { function(library, "tj3Get") }?,
            // SAFETY: as above.
            set: unsafe { function(library, "tj3Set") }?,
            // SAFETY: as above.
            set_scale: unsafe { function(library, "tj3SetScalingFactor") }?,
            // SAFETY: as above.
            set_region: unsafe { function(library, "tj3SetCroppingRegion") }?,
            // SAFETY: as above.
            decompress: unsafe { function(library, "tj3Decompress8") }?,
        })
    }
}

/// # Safety
/// `F` is the type of a pointer to the function.
unsafe fn function<F: Copy>(library: &libloading::Library, name: &'static str) -> Result<F, &'static str> {
    // SAFETY: the caller guarantees that `F` is the function's type.
    unsafe { library.get::<F>(name) }.map(|symbol| *symbol).map_err(|_| name)
}

impl Decompressor {
    /// `None` if the library is out of memory.
    pub(crate) fn new(turbo: &Arc<Turbo>) -> Option<Self> {
        // SAFETY: the function has no conditions.
        let handle = NonNull::new(unsafe { (turbo.init)() })?;
        Some(Self { turbo: Arc::clone(turbo), handle })
    }

    /// Reads the header of an image.
    pub(crate) fn header(&mut self, jpeg: &[u8]) -> Result<JpegHeader, ImageError> {
        let handle = self.handle.as_ptr();
        let (status, [width, height, subsampling, colors]) = match &self.turbo.parts {
            // SAFETY: the handle is valid; the library reads `jpeg.len()` bytes at most. The values have no other conditions.
            Some(parts) => unsafe {
                let status = (parts.header)(handle, jpeg.as_ptr(), jpeg.len());
                let values = [TJPARAM_JPEGWIDTH, TJPARAM_JPEGHEIGHT, TJPARAM_SUBSAMP, TJPARAM_COLORSPACE];
                (status, values.map(|value| (parts.get)(handle, value)))
            },
            None => {
                let [mut width, mut height, mut subsampling, mut colors] = [0; 4];
                // SAFETY: the handle is valid; the library reads `jpeg.len()` bytes at most, and writes one number to each
                // of the four places, which outlive the call.
                let status = unsafe {
                    (self.turbo.header)(
                        handle,
                        jpeg.as_ptr(),
                        jpeg.len() as c_ulong,
                        &mut width,
                        &mut height,
                        &mut subsampling,
                        &mut colors,
                    )
                };
                (status, [width, height, subsampling, colors])
            }
        };
        if status != 0 {
            let (text, is_warning) = self.message();
            if !text.contains(UNUSUAL_SAMPLING) {
                check(text, is_warning, jpeg)?;
            }
        }
        if !self.is_lossy_8_bit() {
            return Err(damaged(
                "it is lossless or has more than 8 bits per sample, which is not supported".to_owned(),
            ));
        }
        match (u32::try_from(width), u32::try_from(height)) {
            (Ok(width @ 1..), Ok(height @ 1..)) => Ok(JpegHeader {
                width,
                height,
                is_cmyk: matches!(colors, TJCS_CMYK | TJCS_YCCK),
                mcu_width: usize::try_from(subsampling).ok().and_then(|kind| MCU_WIDTHS.get(kind)).copied(),
            }),
            _ => Err(damaged("it has no pixels".to_owned())),
        }
    }

    /// Whether the image, whose header was read, is lossy and has 8 bits per sample. Version 2 decodes no others. Version 3 does, but
    /// it ignores the reduction of lossless images, and would write more pixels than there is room for.
    fn is_lossy_8_bit(&self) -> bool {
        // SAFETY: the handle is valid, and the function has no other conditions.
        let get = |parts: &Parts, parameter| unsafe { (parts.get)(self.handle.as_ptr(), parameter) };
        self.turbo
            .parts
            .as_ref()
            .is_none_or(|parts| get(parts, TJPARAM_LOSSLESS) == 0 && get(parts, TJPARAM_PRECISION) == 8)
    }

    /// Decodes at least the `needed` window of an image with this header to `pixels`, reduced by `reduction`: 1, 2, 4 or 8. Returns
    /// the window that was decoded. Both windows are of the reduced image.
    pub(crate) fn decompress(
        &mut self,
        jpeg: &[u8],
        header: JpegHeader,
        (channels, reduction): (Channels, u32),
        needed: Window,
        pixels: &mut Vec<u8>,
    ) -> Result<Window, ImageError> {
        let (width, height) = (header.width.div_ceil(reduction), header.height.div_ceil(reduction));
        let (format, bytes) = match (header.is_cmyk, channels) {
            (true, _) => (TJPF_CMYK, 4),
            (false, Channels::Rgb) => (TJPF_RGB, 3),
            (false, Channels::Gray) => (TJPF_GRAY, 1),
        };
        let whole = Window::whole((width, height));
        let part = header.mcu_width.map_or(whole, |mcu| part(needed, whole, mcu.div_ceil(reduction)));
        // Version 2 reduces smaller images by the least factor that gives this size.
        let is_small = reduction > 1 && header.width.max(header.height) < REDUCED_SIZE;
        // A progressive image has no parts.
        // The library does not read to the end of a part, and reads that of a whole image wherever it is.
        let has_part = part != whole && !is_small && has_end(jpeg) && self.select(part, reduction);
        let decoded = if has_part { part } else { whole };
        // The library writes all pixels, or fails.
        pixels.resize(decoded.width as usize * decoded.height as usize * bytes, 0);
        let status = match &self.turbo.parts {
            // SAFETY: the handle is valid; the library reads `jpeg.len()` bytes at most. It writes `decoded.height` lines of
            // `decoded.width` pixels of `bytes` bytes without gaps (a pitch of 0), for which `pixels` has room: `select` has set
            // this part. The library fails if the image, whose header it reads again, has no such part.
            Some(parts) if decoded != whole => unsafe {
                (parts.decompress)(
                    self.handle.as_ptr(),
                    jpeg.as_ptr(),
                    jpeg.len(),
                    pixels.as_mut_ptr(),
                    0,
                    format,
                )
            },
            // SAFETY: the handle is valid; the library reads `jpeg.len()` bytes at most. It writes `height` lines of `width`
            // pixels of `bytes` bytes without gaps (a pitch of 0), for which `pixels` has room: the size is checked against
            // that of the image, and a larger image is refused.
            _ => unsafe {
                (self.turbo.decompress)(
                    self.handle.as_ptr(),
                    jpeg.as_ptr(),
                    jpeg.len() as c_ulong,
                    pixels.as_mut_ptr(),
                    width as c_int,
                    0,
                    height as c_int,
                    format,
                    TJFLAG_ACCURATEDCT | TJFLAG_LIMITSCANS,
                )
            },
        };
        if status != 0 {
            let (text, is_warning) = self.message();
            check(text, is_warning, jpeg)?;
        }
        if header.is_cmyk {
            of_cmyk(pixels, channels);
        }
        Ok(decoded)
    }

    /// Selects the part of the image, whose header was read, that is decoded next. Returns whether the library can do so, with the
    /// pixels of the whole image: blocks of a progressive image that lacks the last bits are smoothed with those around them.
    fn select(&mut self, part: Window, reduction: u32) -> bool {
        let Some(parts) = &self.turbo.parts else { return false };
        let scale = Scale { numerator: 1, denominator: reduction as c_int };
        let region = TurboRegion {
            left: part.left as c_int,
            top: part.top as c_int,
            width: part.width as c_int,
            height: part.height as c_int,
        };
        // SAFETY: the handle is valid, and the functions have no other conditions.
        unsafe {
            (parts.get)(self.handle.as_ptr(), TJPARAM_PROGRESSIVE) == 0
                && (parts.set)(self.handle.as_ptr(), TJPARAM_SCANLIMIT, MAX_SCANS) == 0
                && (parts.set_scale)(self.handle.as_ptr(), scale) == 0
                && (parts.set_region)(self.handle.as_ptr(), region) == 0
        }
    }

    /// The message of a call that failed, and whether it is a warning.
    fn message(&mut self) -> (String, bool) {
        // SAFETY: the handle is valid. The text ends with a zero, and is valid until the next call.
        unsafe {
            let text = CStr::from_ptr((self.turbo.error_text)(self.handle.as_ptr()));
            let is_warning = (self.turbo.error_code)(self.handle.as_ptr()) == TJERR_WARNING;
            (text.to_string_lossy().into_owned(), is_warning)
        }
    }
}

/// The part of an image to decode so that the pixels of the `needed` window are those of the `whole` image. It begins at a multiple
/// of `mcu` pixels.
fn part(needed: Window, whole: Window, mcu: u32) -> Window {
    let end = (needed.left + needed.width + BORDER).max(INTERPOLATED_WIDTH).min(whole.width);
    let first = needed.left.saturating_sub(BORDER).min(end.saturating_sub(INTERPOLATED_WIDTH));
    let left = first / mcu * mcu;
    Window { left, width: end - left, ..needed }
}

/// Passes a harmless warning. The library reports the first warning only, so a lost end must not hide behind it.
fn check(text: String, is_warning: bool, jpeg: &[u8]) -> Result<(), ImageError> {
    let is_harmless = is_warning && HARMLESS.iter().any(|harmless| text.contains(harmless));
    if is_harmless && has_end(jpeg) { Ok(()) } else { Err(damaged(text)) }
}

fn has_end(jpeg: &[u8]) -> bool {
    let tail = &jpeg[jpeg.len().saturating_sub(END_WITHIN)..];
    tail.windows(END.len()).any(|bytes| bytes == END)
}

impl Drop for Decompressor {
    fn drop(&mut self) {
        // SAFETY: the handle is valid, and not used again.
        unsafe { (self.turbo.destroy)(self.handle.as_ptr()) };
    }
}

fn damaged(message: String) -> ImageError {
    ImageError::Damaged { format: "JPEG", message }
}

/// Converts pixels of inverted CMYK, as Adobe's programs write them, in place.
fn of_cmyk(pixels: &mut Vec<u8>, channels: Channels) {
    let of = |ink: u8, black: u8| ((u32::from(ink) * u32::from(black) + 127) / 255) as u8;
    let count = channels.count();
    for pixel in 0..pixels.len() / 4 {
        let [cyan, magenta, yellow, black] = std::array::from_fn(|ink| pixels[4 * pixel + ink]);
        let rgb = [of(cyan, black), of(magenta, black), of(yellow, black)];
        match channels {
            Channels::Rgb => pixels[3 * pixel..][..3].copy_from_slice(&rgb),
            Channels::Gray => pixels[pixel] = crate::decoder::luma(rgb),
        }
    }
    pixels.truncate(pixels.len() / 4 * count);
}

#[cfg(test)]
pub(crate) mod tests {
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
            let init: unsafe extern "C" fn(c_int) -> *mut c_void =
                function(&turbo._library, "tj3Init").unwrap();
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
    const BASELINE: &[u8] = include_bytes!("../../../tests/properties/src/image/baseline.jpg");

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

    #[test]
    fn unusual_sampling_is_decoded() {
        let Some(Ok(pixels)) = decoded(BASELINE) else { return };
        let mut jpeg = BASELINE.to_vec();
        // Of the first component: 4 x 1 blocks instead of 2 x 2. The scan has as many blocks, in another order.
        let sampling = behind(0xc0) + 9;
        assert_eq!(jpeg[sampling], 0x22);
        jpeg[sampling] = 0x41;
        let found = decoded(&jpeg).unwrap();
        assert!(found.is_ok_and(|found| found.len() == pixels.len()));
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
        let components =
            (1..).zip(factors).flat_map(|(id, &(across, down))| [id, (across << 4 | down) as u8, 0]);
        let frame = [8, high, low, left, right, factors.len() as u8].into_iter().chain(components);
        segment(0xc0, &frame.collect::<Vec<u8>>());
        // Differences of 0 and of 1 bit: codes of two bits. Then only the end of a block: a code of one bit.
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
            let value =
                byte.iter().chain(std::iter::repeat(&1)).take(8).fold(0, |value, bit| value << 1 | bit);
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
}
