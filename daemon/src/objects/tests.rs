#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::os::unix::net::UnixStream as StdUnixStream;

use futures::TryStreamExt;
use futures::executor::block_on;
use millstream_batch::messages;
use millstream_worker::objects::ObjectClient;
use object_store::path::Path as Location;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions};
use tokio::runtime::Runtime;

use super::*;

/// A local directory is served as one in a bucket.
struct Served {
    directory: tempfile::TempDir,
    runtime: Runtime,
}

impl Served {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap(), runtime: Runtime::new().unwrap() }
    }

    fn connect(&self, writing: Writing) -> (StdUnixStream, ServedObjects) {
        let (ours, theirs) = StdUnixStream::pair().unwrap();
        let directory = Directory::local(self.directory.path().join("run"));
        let server = ObjectServer::new(directory, &Stores::default(), writing);
        (ours, server.start(theirs, self.runtime.handle()).unwrap())
    }

    fn client(&self) -> ObjectClient {
        ObjectClient::new(self.connect(Writing::Allowed).0)
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }
}

fn put(client: &ObjectClient, name: &str, bytes: &[u8], mode: PutMode) -> object_store::Result<()> {
    let options = PutOptions { mode, ..PutOptions::default() };
    block_on(client.put_opts(&Location::from(name), bytes.to_vec().into(), options)).map(drop)
}

fn get(client: &ObjectClient, name: &str) -> object_store::Result<Vec<u8>> {
    let read = async { client.get(&Location::from(name)).await?.bytes().await };
    block_on(read).map(Into::into)
}

#[test]
fn objects_are_written_listed_read_and_deleted() {
    let served = Served::new();
    let client = served.client();
    assert!(matches!(get(&client, "a"), Err(Error::NotFound { .. })));
    put(&client, "a", b"first", PutMode::Create).unwrap();
    assert!(matches!(put(&client, "a", b"again", PutMode::Create), Err(Error::AlreadyExists { .. })));
    put(&client, "step-1/term-2/b", b"", PutMode::Overwrite).unwrap();
    put(&client, "a", b"second", PutMode::Overwrite).unwrap();
    assert_eq!(get(&client, "a").unwrap(), b"second");
    assert_eq!(get(&client, "step-1/term-2/b").unwrap(), b"");

    // Larger than what is read at a time.
    let large: Vec<u8> = (0..3 * PIECE_BYTES + 7).map(|at| (at % 251) as u8).collect();
    let mut upload = block_on(client.put_multipart(&Location::from("step-1/large"))).unwrap();
    for piece in large.chunks(5 << 20) {
        block_on(upload.put_part(piece.to_vec().into())).unwrap();
    }
    assert!(matches!(get(&client, "step-1/large"), Err(Error::NotFound { .. })), "before its end");
    block_on(upload.complete()).unwrap();
    assert!(get(&client, "step-1/large").unwrap() == large);

    let names = |prefix: Option<&str>| -> Vec<String> {
        let prefix = prefix.map(Location::from);
        let listed = client.list(prefix.as_ref()).map_ok(|object| object.location.to_string());
        block_on(listed.try_collect()).unwrap()
    };
    assert_eq!(names(None), ["a", "step-1/large", "step-1/term-2/b"]);
    assert_eq!(names(Some("step-1")), ["step-1/large", "step-1/term-2/b"]);
    block_on(client.delete(&Location::from("a"))).unwrap();
    block_on(client.delete(&Location::from("a"))).unwrap();
    assert_eq!(names(None).len(), 2);
}

#[test]
fn a_worker_reaches_no_object_outside_of_its_directory() {
    let served = Served::new();
    std::fs::write(served.file("secret"), "of another").unwrap();
    let (mut socket, _served) = served.connect(Writing::Allowed);
    let long = "a".repeat(MAX_NAME_BYTES + 1);
    for name in
        ["../secret", "", ".", "a/../../secret", "/etc/passwd", "a//b", "*", "step-[0-9]", "a\0", &long]
    {
        let name = name.to_owned();
        for request in [
            ObjectRequest::Get { name: name.clone() },
            ObjectRequest::Delete { name: name.clone() },
            ObjectRequest::Create { name: name.clone(), upload: 1 },
            ObjectRequest::Put { name, bytes: 0, is_new: false },
        ] {
            messages::send(&mut socket, &request).unwrap();
            let reply = messages::receive(&mut socket).unwrap().unwrap();
            assert!(matches!(reply, ObjectReply::Failed { .. }), "{request:?}: {reply:?}");
        }
    }
    assert_eq!(std::fs::read_dir(served.directory.path()).unwrap().count(), 1);
}

#[test]
fn what_is_read_only_is_not_changed() {
    let served = Served::new();
    put(&served.client(), "a", b"kept", PutMode::Create).unwrap();
    let reader = ObjectClient::new(served.connect(Writing::Refused).0);
    assert_eq!(get(&reader, "a").unwrap(), b"kept");
    assert!(put(&reader, "a", b"other", PutMode::Overwrite).unwrap_err().to_string().contains("read only"));
    assert!(block_on(reader.delete(&Location::from("a"))).is_err());
    assert!(block_on(reader.put_multipart(&Location::from("b"))).is_err());
    assert_eq!(get(&reader, "a").unwrap(), b"kept");
}

#[test]
fn malformed_requests_end_the_connection_only() {
    let served = Served::new();
    let long = u32::MAX.to_le_bytes().to_vec();
    let mut huge = Vec::new();
    let request = ObjectRequest::Put { name: "a".into(), bytes: MAX_CONTENT_BYTES + 1, is_new: false };
    messages::send(&mut huge, &request).unwrap();
    for bytes in [long, [&2_u32.to_le_bytes()[..], b"{}"].concat(), huge] {
        let (mut socket, _served) = served.connect(Writing::Allowed);
        socket.write_all(&bytes).unwrap();
        assert_eq!(socket.read(&mut [0]).unwrap(), 0, "it is closed");
    }
    // One object is written at a time.
    let (mut socket, _served) = served.connect(Writing::Allowed);
    let mut ask = |request: &ObjectRequest| -> ObjectReply {
        messages::send(&mut socket, request).unwrap();
        messages::receive(&mut socket).unwrap().unwrap()
    };
    assert_eq!(ask(&ObjectRequest::Create { name: "a".into(), upload: 1 }), ObjectReply::Done);
    for upload in [1, 2] {
        let reply = ask(&ObjectRequest::Create { name: "b".into(), upload });
        assert!(matches!(reply, ObjectReply::Failed { .. }), "{reply:?}");
    }
    let reply = ask(&ObjectRequest::Finish { upload: 7 });
    assert!(matches!(reply, ObjectReply::Failed { .. }), "{reply:?}");
    assert_eq!(ask(&ObjectRequest::Finish { upload: 1 }), ObjectReply::Done);
    assert!(served.file("run/a").exists());
}

#[test]
fn nothing_is_served_once_it_is_cancelled() {
    let served = Served::new();
    let (socket, objects) = served.connect(Writing::Allowed);
    let client = ObjectClient::new(socket);
    put(&client, "a", b"before", PutMode::Create).unwrap();
    let upload = block_on(client.put_multipart(&Location::from("b"))).unwrap();
    objects.cancel();
    objects.wait();
    assert!(put(&client, "a", b"after", PutMode::Overwrite).is_err());
    drop(upload);
    let names: Vec<_> =
        std::fs::read_dir(served.file("run")).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(names, ["a"], "the unfinished upload is gone");
}
