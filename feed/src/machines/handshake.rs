//! The handshake between the hosts of two machines. Numbers are little-endian.
//!
//! ```text
//! caller -> answerer   "millpeer", version u32, from u32, to u32, nonce [32]
//! answerer -> caller   nonce [32], HMAC-SHA256(secret, "answer", both greetings) [32]
//! caller -> answerer   HMAC-SHA256(secret, "caller", both greetings) [32]
//! ```
//!
//! Each end proves that it knows the secret before the other one trusts it, and neither proof can be used again: the nonces are
//! new, and the texts differ.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hmac::{Hmac, KeyInit, Mac};
use rustix::rand::{GetRandomFlags, getrandom};
use sha2::Sha256;

/// The first bytes of a connection.
const MAGIC: [u8; 8] = *b"millpeer";

/// The version of the handshake and of what follows it.
const VERSION: u32 = 1;

const NONCE_BYTES: usize = 32;
const PROOF_BYTES: usize = 32;
const HELLO_BYTES: usize = MAGIC.len() + 4 + 4 + 4 + NONCE_BYTES;

/// How long a handshake may take.
const TIMEOUT: Duration = Duration::from_secs(5);

/// What the hosts that have met know, and others do not.
pub(super) struct Secret(pub(super) [u8; 64]);

/// The machines at the two ends, by number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Greeting {
    pub(super) from: u32,
    pub(super) to: u32,
}

/// An end of the connection.
#[derive(Clone, Copy)]
enum End {
    Caller,
    Answerer,
}

impl Greeting {
    /// Proves to the host at the other end of `socket` that this one is `from`, and checks that it is `to`.
    ///
    /// # Errors
    /// It is not, or does not answer.
    pub(super) fn call(self, socket: TcpStream, secret: &Secret) -> io::Result<TcpStream> {
        let mut shaking = Shaking::start(socket)?;
        let hello = self.hello(random()?);
        shaking.socket.write_all(&hello)?;
        let (nonce, proof) = (shaking.read::<NONCE_BYTES>()?, shaking.read::<PROOF_BYTES>()?);
        secret.check(End::Answerer, (&hello, &nonce), &proof)?;
        shaking.socket.write_all(&secret.proof(End::Caller, (&hello, &nonce)))?;
        Ok(shaking.socket)
    }

    fn hello(self, nonce: [u8; NONCE_BYTES]) -> [u8; HELLO_BYTES] {
        let mut hello = [0; HELLO_BYTES];
        let parts =
            [&MAGIC[..], &VERSION.to_le_bytes(), &self.from.to_le_bytes(), &self.to.to_le_bytes(), &nonce];
        hello.copy_from_slice(&parts.concat());
        hello
    }
}

/// Proves to the host at the other end of `socket` that this one is number `here`, and checks that it is one that is
/// `expected`. Returns its number.
///
/// # Errors
/// It is not, or does not answer.
pub(super) fn answer(
    socket: TcpStream,
    secret: &Secret,
    here: usize,
    expected: impl Fn(usize) -> bool,
) -> io::Result<(usize, TcpStream)> {
    let mut shaking = Shaking::start(socket)?;
    let hello = shaking.read::<HELLO_BYTES>()?;
    let refuse = |message: String| Err(io::Error::new(io::ErrorKind::InvalidData, message));
    let Some((head, [from, to])) = numbers(&hello) else { return refuse("not a host of a feed".to_owned()) };
    if head != VERSION {
        return refuse(format!("a host of version {head}; expected {VERSION}"));
    }
    if to as usize != here || !expected(from as usize) {
        return refuse(format!("machine {from} calls machine {to}, and this is machine {here}"));
    }
    let nonce = random::<NONCE_BYTES>()?;
    shaking.socket.write_all(&[&nonce[..], &secret.proof(End::Answerer, (&hello, &nonce))].concat())?;
    let proof = shaking.read::<PROOF_BYTES>()?;
    secret.check(End::Caller, (&hello, &nonce), &proof)?;
    Ok((from as usize, shaking.socket))
}

/// A connection whose ends have not proved anything yet.
struct Shaking {
    socket: TcpStream,
    deadline: Instant,
}

impl Shaking {
    fn start(socket: TcpStream) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        // What is written fits the buffers of the system.
        socket.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self { socket, deadline: Instant::now() + TIMEOUT })
    }

    /// Reads so many bytes, within the time of the whole handshake.
    fn read<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let (mut bytes, mut filled) = ([0; N], 0);
        while filled < N {
            let left = self.deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.socket.set_read_timeout(Some(left))?;
            match self.socket.read(&mut bytes[filled..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                read => filled += read,
            }
        }
        Ok(bytes)
    }
}

/// The version, and the numbers of the two ends.
fn numbers(hello: &[u8; HELLO_BYTES]) -> Option<(u32, [u32; 2])> {
    let rest = hello.strip_prefix(&MAGIC)?;
    let (words, _) = rest.as_chunks::<4>();
    let [version, from, to] = [0, 1, 2].map(|word| u32::from_le_bytes(words[word]));
    Some((version, [from, to]))
}

impl Secret {
    fn proof(&self, end: End, said: (&[u8], &[u8])) -> [u8; PROOF_BYTES] {
        self.mac(end, said).finalize().into_bytes().into()
    }

    /// Compares in constant time.
    fn check(&self, end: End, said: (&[u8], &[u8]), proof: &[u8; PROOF_BYTES]) -> io::Result<()> {
        let is_right = self.mac(end, said).verify_slice(proof).is_ok();
        let wrong = || io::Error::new(io::ErrorKind::PermissionDenied, "a host of another program");
        is_right.then_some(()).ok_or_else(wrong)
    }

    fn mac(&self, end: End, (hello, nonce): (&[u8], &[u8])) -> Hmac<Sha256> {
        let end: &[u8] = match end {
            End::Caller => b"caller",
            End::Answerer => b"answer",
        };
        let mut mac = Hmac::<Sha256>::new(&self.0.into());
        [end, hello, nonce].into_iter().for_each(|part| mac.update(part));
        mac
    }
}

/// Bytes that nobody can guess.
pub(super) fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    match getrandom(&mut bytes, GetRandomFlags::empty())? {
        filled if filled == N => Ok(bytes),
        _ => Err(io::Error::other("the system has no random bytes")),
    }
}
