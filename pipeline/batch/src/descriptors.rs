//! Passing file descriptors to another process over a Unix stream socket.
//!
//! A message is an eight-byte greeting, which names its kind, with the descriptors as SCM_RIGHTS. The kernel delivers
//! descriptors with the bytes that they were sent with. So the receiver must read everything before the message exactly to
//! its end: a buffered reader would consume the greeting and lose the descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;

use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

/// What a message of descriptors begins with.
pub type Greeting = [u8; 8];

/// The most descriptors of a message.
const MOST: usize = 4;

/// Why descriptors cannot be sent or received.
#[derive(Debug, thiserror::Error)]
pub enum DescriptorError {
    /// The other end of the socket is closed.
    #[error("the other end of the socket is closed")]
    Closed,
    /// The system refuses it.
    #[error(transparent)]
    Os(#[from] io::Error),
    /// The message begins with other bytes than its greeting.
    #[error("the message is of another kind")]
    OtherKind,
    /// The message has more or fewer descriptors.
    #[error("the message has {found} descriptors instead of {expected}")]
    Count {
        /// The number received.
        found: usize,
        /// The number of this kind of message.
        expected: usize,
    },
}

/// Sends up to four descriptors over a blocking socket.
///
/// # Errors
/// When the other end is closed, or the system refuses it.
pub fn send<const N: usize>(
    socket: &UnixStream,
    greeting: Greeting,
    descriptors: [BorrowedFd<'_>; N],
) -> Result<(), DescriptorError> {
    const { assert!(N <= MOST) };
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "the buffer fits the descriptors");
    let bytes = [IoSlice::new(&greeting)];
    match retry_on_intr(|| rustix::net::sendmsg(socket, &bytes, &mut control, SendFlags::NOSIGNAL)) {
        Ok(sent) if sent == greeting.len() => Ok(()),
        Ok(_) => Err(io::Error::from(io::ErrorKind::WriteZero).into()),
        Err(Errno::PIPE | Errno::CONNRESET) => Err(DescriptorError::Closed),
        Err(error) => Err(io::Error::from(error).into()),
    }
}

/// Receives the descriptors of a message with this greeting.
///
/// # Errors
/// When the other end is closed, the next message is another one, or the system refuses it.
pub fn receive<const N: usize>(
    socket: &UnixStream,
    greeting: Greeting,
) -> Result<[OwnedFd; N], DescriptorError> {
    const { assert!(N <= MOST) };
    let mut found = Greeting::default();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry_on_intr(|| {
        let mut bytes = [IoSliceMut::new(&mut found)];
        rustix::net::recvmsg(socket, &mut bytes, &mut control, RecvFlags::CMSG_CLOEXEC)
    });
    let received = match received {
        Ok(message) if message.bytes == 0 => return Err(DescriptorError::Closed),
        Ok(message) => message,
        Err(Errno::CONNRESET) => return Err(DescriptorError::Closed),
        Err(error) => return Err(io::Error::from(error).into()),
    };
    let mut descriptors = Vec::with_capacity(MOST);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.bytes != greeting.len() || found != greeting {
        return Err(DescriptorError::OtherKind);
    }
    let count = DescriptorError::Count { found: descriptors.len(), expected: N };
    let is_truncated = received.flags.contains(ReturnFlags::CTRUNC);
    <[OwnedFd; N]>::try_from(descriptors).ok().filter(|_| !is_truncated).ok_or(count)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs::File;
    use std::io::Read;
    use std::os::fd::AsFd;

    use super::*;

    const GREETING: Greeting = *b"testfile";

    #[test]
    fn descriptors_arrive_in_order() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let files = ["/dev/null", "/dev/zero"].map(|path| File::open(path).unwrap());
        send(&ours, GREETING, files.each_ref().map(AsFd::as_fd)).unwrap();
        drop(files);
        let received = receive::<2>(&theirs, GREETING).unwrap();
        let bytes = received.map(|file| File::from(file).read(&mut [1; 8]).unwrap());
        assert_eq!(bytes, [0, 8]);
    }

    #[test]
    fn other_messages_are_refused() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        send(&ours, GREETING, [file.as_fd()]).unwrap();
        assert!(matches!(receive::<1>(&theirs, *b"ringfile"), Err(DescriptorError::OtherKind)));
        send(&ours, GREETING, [file.as_fd()]).unwrap();
        let few = receive::<2>(&theirs, GREETING).unwrap_err();
        assert_eq!(few.to_string(), "the message has 1 descriptors instead of 2");
        send(&ours, GREETING, [file.as_fd(); 4]).unwrap();
        let many = receive::<2>(&theirs, GREETING).unwrap_err();
        assert_eq!(many.to_string(), "the message has 4 descriptors instead of 2");
        drop(ours);
        assert!(matches!(receive::<1>(&theirs, GREETING), Err(DescriptorError::Closed)));
        assert!(matches!(send(&theirs, GREETING, [file.as_fd()]), Err(DescriptorError::Closed)));
    }
}
