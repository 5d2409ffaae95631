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
pub(crate) mod tests;
