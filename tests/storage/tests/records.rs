//! Small objects that several hosts share: written on conditions, in each cloud's way.

#![allow(clippy::unwrap_used)]

use std::path::Path;

use millstream_io::storage::{StorageSpec, Stores};
use millstream_test_storage::{Fault, Options, Server};

const SCHEMES: [&str; 3] = ["gs", "s3", "az"];

async fn start() -> (Server, Stores) {
    let server = Server::start(Options::default()).await.unwrap();
    let mut spec = StorageSpec::default();
    let endpoint = || Some(server.endpoint());
    (spec.gs.endpoint, spec.s3.endpoint, spec.az.endpoint) = (endpoint(), endpoint(), endpoint());
    (spec.gs.anonymous, spec.s3.anonymous, spec.az.anonymous) = (Some(true), Some(true), Some(true));
    spec.s3.region = Some("us-east-1".to_owned());
    spec.az.account = Some("someone".to_owned());
    (server, Stores::new(spec, 0))
}

#[tokio::test]
async fn one_of_several_writers_replaces_a_version() {
    let (_server, stores) = start().await;
    let base = Path::new("/");
    for scheme in SCHEMES {
        let address = format!("{scheme}://b/{scheme}/lease.json");
        assert!(stores.get_small(&address, base).await.unwrap().is_none());
        let written = stores.put_new(&address, base, b"0".to_vec()).await.unwrap().unwrap();
        let (bytes, read) = stores.get_small(&address, base).await.unwrap().unwrap();
        assert_eq!(
            (&bytes[..], &read),
            (&b"0"[..], &written),
            "{scheme}: reads and writes name versions alike"
        );
        assert!(stores.put_new(&address, base, b"1".to_vec()).await.unwrap().is_none(), "{scheme}");

        let mut version = written;
        for turn in 1..5_u8 {
            let writers = (0..4_u8).map(|writer| stores.replace(&address, vec![turn, writer], &version));
            let replaced = futures::future::try_join_all(writers).await.unwrap();
            let won: Vec<u8> = (0..4).filter(|&writer| replaced[usize::from(writer)].is_some()).collect();
            let [winner] = won[..] else { panic!("{scheme}: {won:?} have replaced one version") };
            let (bytes, next) = stores.get_small(&address, base).await.unwrap().unwrap();
            assert_eq!(bytes, vec![turn, winner], "{scheme}");
            assert_eq!(replaced[usize::from(winner)].as_ref(), Some(&next), "{scheme}");
            version = next;
        }
        assert!(stores.delete(&address, base).await.unwrap());
        assert!(stores.replace(&address, b"9".to_vec(), &version).await.unwrap().is_none(), "{scheme}");
        assert!(stores.get_small(&address, base).await.unwrap().is_none());
    }
}

#[tokio::test]
async fn conditional_writes_are_retried_and_refusals_are_errors() {
    let (server, stores) = start().await;
    for scheme in ["gs", "s3"] {
        let address = format!("{scheme}://b/{scheme}/lease.json");
        server.script([503, 429].map(Fault::WriteStatus));
        let version = stores.put_new(&address, Path::new("/"), b"0".to_vec()).await.unwrap().unwrap();
        server.script([Fault::WriteStatus(503)]);
        assert!(stores.replace(&address, b"1".to_vec(), &version).await.unwrap().is_some());
        assert_eq!(server.unmet(), 0);
        server.script([Fault::WriteStatus(403)]);
        let error = stores.put_new(&address, Path::new("/"), b"2".to_vec()).await.unwrap_err();
        assert!(error.is_denied() && error.to_string().contains(&address), "{error}");
    }
    // A bucket that does not exist is not an object that exists.
    server.script([Fault::WriteStatus(404)]);
    assert!(stores.put_new("gs://none/a", Path::new("/"), b"0".to_vec()).await.is_err());
}
