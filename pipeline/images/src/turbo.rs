//! libjpeg-turbo of the host, by the functions of its TurboJPEG interface (version 2, which later ones keep).
//!
//! Loaded at run time and never linked, as CUDA is: a host without JPEG images needs no library.

use std::error::Error;
use std::ffi::{CStr, c_char, c_int, c_uchar, c_ulong, c_void};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::ImageError;
use crate::spec::Channels;

/// The library's file name, the same since version 1.2.
const FILE: &str = "libturbojpeg.so.0";

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

/// Warnings about what does not change a pixel. The library has others for lost data.
const HARMLESS: [&str; 4] =
    ["extraneous bytes before marker", "Unknown Adobe", "Unsupported JFIF", "Inconsistent progression"];

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
    /// Keeps the functions valid.
    _library: libloading::Library,
}

/// The size and the colours of a JPEG image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JpegHeader {
    pub(crate) width: u32,
    pub(crate) height: u32,
    is_cmyk: bool,
}

/// A decompressor, for one thread at a time.
pub(crate) struct Decompressor {
    turbo: Arc<Turbo>,
    handle: Handle,
}

// SAFETY: the library has no state beside that of a decompressor, which one thread uses at a time.
unsafe impl Send for Decompressor {}

impl Turbo {
    /// Loads the library from `file`, or by its usual name from the system.
    ///
    /// # Errors
    /// There is no such library, or it lacks a function.
    pub fn load(file: Option<&Path>) -> Result<Self, TurboError> {
        let file = file.map_or_else(|| PathBuf::from(FILE), Path::to_owned);
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
            _library: library,
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
        let (mut width, mut height, mut subsampling, mut colors) = (0, 0, 0, 0);
        // SAFETY: the handle is valid; the library reads `jpeg.len()` bytes at most, and writes one number to each of the
        // four places, which outlive the call.
        let status = unsafe {
            (self.turbo.header)(
                self.handle.as_ptr(),
                jpeg.as_ptr(),
                jpeg.len() as c_ulong,
                &mut width,
                &mut height,
                &mut subsampling,
                &mut colors,
            )
        };
        if status != 0 {
            self.check_warning()?;
        }
        match (u32::try_from(width), u32::try_from(height)) {
            (Ok(width @ 1..), Ok(height @ 1..)) => {
                Ok(JpegHeader { width, height, is_cmyk: matches!(colors, TJCS_CMYK | TJCS_YCCK) })
            }
            _ => Err(damaged("it has no pixels".to_owned())),
        }
    }

    /// Decodes an image with this header to `pixels`, reduced by `reduction`: 1, 2, 4 or 8. Returns its size.
    pub(crate) fn decompress(
        &mut self,
        jpeg: &[u8],
        header: JpegHeader,
        (channels, reduction): (Channels, u32),
        pixels: &mut Vec<u8>,
    ) -> Result<(u32, u32), ImageError> {
        let (width, height) = (header.width.div_ceil(reduction), header.height.div_ceil(reduction));
        let (format, bytes) = match (header.is_cmyk, channels) {
            (true, _) => (TJPF_CMYK, 4),
            (false, Channels::Rgb) => (TJPF_RGB, 3),
            (false, Channels::Gray) => (TJPF_GRAY, 1),
        };
        pixels.clear();
        pixels.resize(width as usize * height as usize * bytes, 0);
        // SAFETY: the handle is valid; the library reads `jpeg.len()` bytes at most. It writes `height` lines of `width`
        // pixels of `bytes` bytes without gaps (a pitch of 0), for which `pixels` has room: the size is checked against
        // that of the image, and a larger image is refused.
        let status = unsafe {
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
        };
        if status != 0 {
            self.check_warning()?;
        }
        if header.is_cmyk {
            of_cmyk(pixels, channels);
        }
        Ok((width, height))
    }

    /// After a call that failed: `Ok` if it was a harmless warning.
    fn check_warning(&mut self) -> Result<(), ImageError> {
        // SAFETY: the handle is valid. The text ends with a zero, and is valid until the next call.
        let (text, code) = unsafe {
            let text = CStr::from_ptr((self.turbo.error_text)(self.handle.as_ptr()));
            (text.to_string_lossy().into_owned(), (self.turbo.error_code)(self.handle.as_ptr()))
        };
        let is_harmless = HARMLESS.iter().any(|harmless| text.contains(harmless));
        if code == TJERR_WARNING && is_harmless { Ok(()) } else { Err(damaged(text)) }
    }
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
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_reported_with_its_package() {
        let Err(error) = Turbo::load(Some(Path::new("/nowhere/libturbojpeg.so.0"))) else {
            panic!("there is one")
        };
        let message = error.to_string();
        assert!(message.contains("/nowhere/libturbojpeg.so.0"), "{message}");
        assert!(message.contains("No such file") && message.contains("libturbojpeg0"), "{message}");
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
