//! Feeds: any text is either a valid feed or a list of errors, and a feed written out parses to the same feed. Any bytes
//! are an attach message or none, and its state names a position and files, or an error.

use std::path::Path;

use millstream_feed::protocol::{Attach, ShardRequest, VERSION};
use millstream_feed::spec::FeedSpec;
use millstream_feed::state::{FeedState, Files};

const FEED: &str = r#"seed = 7
[data]
train = ["train-*.parquet"]
eval = { val = "val.parquet" }
batch_size = 1024
shuffle_rows = 16_384
on_bad_record = "skip"
[columns]
label = { dtype = "int64", missing = -1 }
pixels = { column = "image/raw", dtype = "bfloat16", shape = [28, 28] }
tags = { kind = "ragged", dtype = "uint8", maximum = 20 }
url = { kind = "raw", maximum = 512 }
[storage]
deadline_seconds = 9
"#;

/// Parses the bytes as a feed file if they are UTF-8, and as an attach message.
pub fn check(data: &[u8]) {
    if let Ok(text) = std::str::from_utf8(data) {
        parse(text);
    }
    let Ok(Attach { feed, state, .. }) = serde_json::from_slice(data) else { return };
    parse(&feed);
    if let Some(state) = state {
        _ = state.position();
        // No file is there any more.
        _ = state.files.keep(Vec::new());
    }
}

fn parse(text: &str) {
    let path = Path::new("/nowhere/feed.toml");
    match FeedSpec::parse(text, path) {
        Ok(feed) => {
            let again = FeedSpec::parse(&feed.text, path).unwrap_or_else(|error| {
                panic!("a feed written out must parse:\n{error}\n{}", feed.text);
            });
            assert_eq!(again.text, feed.text);
            // A replacement that is NaN is not equal to itself.
            assert_eq!(format!("{again:?}"), format!("{feed:?}"));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A feed, and a rank that attaches to it.
pub fn seeds() -> Vec<Vec<u8>> {
    let state = FeedState { version: 1, position: "AQID".to_owned(), epochs: Some(2), files: Files::of(&[]) };
    let (feed, run) = (FEED.to_owned(), "run".to_owned());
    let address = Some([127, 0, 0, 1].into());
    let shard = ShardRequest { toward: Some("host".to_owned()), address, ports: Some((7430, 7439)) };
    let (state, shard) = (Some(state), Some(shard));
    let attach = Attach { version: VERSION, feed, run, rank: 1, world: 2, local_world: 2, state, shard };
    vec![FEED.as_bytes().to_vec(), serde_json::to_vec(&attach).unwrap()]
}

/// The words of the feed.
pub fn dictionary() -> Vec<Vec<u8>> {
    let words = FEED.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let words: std::collections::BTreeSet<&str> = words.filter(|word| word.len() > 2).collect();
    words.into_iter().map(|word| word.as_bytes().to_vec()).collect()
}
