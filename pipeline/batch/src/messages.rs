//! Messages over a stream socket: a length in bytes (u32, little endian) followed by that many bytes of JSON.
//!
//! Neither end reads beyond a message, so descriptors ([`crate::descriptors`]) may follow one.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// The maximum length of a message.
pub const MAXIMUM_MESSAGE_BYTES: usize = 16 << 20;

/// Why a message could not be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// The socket failed or closed within a message.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// A message longer than [`MAXIMUM_MESSAGE_BYTES`].
    #[error("a message of {0} bytes exceeds the protocol's limit")]
    TooLong(usize),
    /// A message that does not parse.
    #[error("a malformed message: {0}")]
    Malformed(#[from] serde_json::Error),
}

/// Sends one message.
///
/// # Errors
/// When the message is too long or the socket fails.
pub fn send<T: Serialize>(socket: &mut impl Write, message: &T) -> Result<(), MessageError> {
    let mut frame = vec![0; 4];
    serde_json::to_writer(&mut frame, message)?;
    let bytes = frame.len() - 4;
    let length = u32::try_from(bytes).ok().filter(|_| bytes <= MAXIMUM_MESSAGE_BYTES);
    frame[..4].copy_from_slice(&length.ok_or(MessageError::TooLong(bytes))?.to_le_bytes());
    Ok(socket.write_all(&frame)?)
}

/// Receives one message without reading past it; `None` at an end of file between messages.
///
/// # Errors
/// When the message is too long, truncated or malformed, or the socket fails.
pub fn receive<T: DeserializeOwned>(socket: &mut impl Read) -> Result<Option<T>, MessageError> {
    let mut length = Vec::new();
    socket.by_ref().take(4).read_to_end(&mut length)?;
    if length.is_empty() {
        return Ok(None);
    }
    let length = length.try_into().map_err(|_| io::Error::from(io::ErrorKind::UnexpectedEof))?;
    let bytes = u32::from_le_bytes(length) as usize;
    if bytes > MAXIMUM_MESSAGE_BYTES {
        return Err(MessageError::TooLong(bytes));
    }
    let mut body = vec![0; bytes];
    socket.read_exact(&mut body)?;
    Ok(Some(serde_json::from_slice(&body)?))
}
