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

/// Warnings that leave all pixels intact, by parts of their texts (jerror.h). Other warnings report lost data.
const HARMLESS: [&str; 6] = [
    "extraneous bytes before marker",
    "Unknown Adobe color transform",
    "unknown JFIF revision",
    "Inconsistent progression sequence",
    "Invalid SOS parameters for sequential JPEG",
    "bad ICC marker",
];

/// The error of a header with unusual sampling, which is complete and can be decoded.
const UNUSUAL_SAMPLING: &str = "Could not determine subsampling type";

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

/// A decompressor of one image, for one thread at a time.
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
            let (text, is_warning) = self.message();
            if !text.contains(UNUSUAL_SAMPLING) {
                check(text, is_warning, jpeg)?;
            }
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
            let (text, is_warning) = self.message();
            check(text, is_warning, jpeg)?;
        }
        if header.is_cmyk {
            of_cmyk(pixels, channels);
        }
        Ok((width, height))
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

/// Passes a harmless warning. The library reports the first warning only, so a lost end must not hide behind it.
fn check(text: String, is_warning: bool, jpeg: &[u8]) -> Result<(), ImageError> {
    let is_harmless = is_warning && HARMLESS.iter().any(|harmless| text.contains(harmless));
    let tail = &jpeg[jpeg.len().saturating_sub(END_WITHIN)..];
    let has_end = tail.windows(END.len()).any(|bytes| bytes == END);
    if is_harmless && has_end { Ok(()) } else { Err(damaged(text)) }
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
    #![allow(clippy::unwrap_used)]

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

    /// Of 17 x 9 pixels, by Pillow.
    const BASELINE: &[u8] = include_bytes!("../../../tests/properties/src/image/baseline.jpg");

    /// Decodes an image; `None` without the library, which is not on every host.
    fn decoded(jpeg: &[u8]) -> Option<Result<Vec<u8>, String>> {
        let turbo = Arc::new(Turbo::load(None).ok()?);
        let mut decompressor = Decompressor::new(&turbo).unwrap();
        let mut pixels = Vec::new();
        let decoded = decompressor
            .header(jpeg)
            .and_then(|header| decompressor.decompress(jpeg, header, (Channels::Rgb, 1), &mut pixels));
        Some(
            decoded.map(|size| assert_eq!(size, (17, 9))).map(|()| pixels).map_err(|error| error.to_string()),
        )
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
