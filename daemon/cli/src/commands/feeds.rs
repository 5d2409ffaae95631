//! `millstream feeds`: lists the feeds of trainers of other programs.

use std::time::{Duration, SystemTime};

use millstream_control::proto::{Feed, FeedsReply};

use crate::connection::to_daemon;
use crate::context::Context;
use crate::failure::Failure;
use crate::figures;
use crate::printable::printable;
use crate::screen::output_width;
use crate::table::Table;

/// Columns that a narrow terminal does without, the first one first.
const EXPENDABLE: [&str; 4] = ["RUN", "READ", "BATCHES", "BOTTLENECK"];

pub(crate) async fn run(context: &Context) -> Result<(), Failure> {
    let reply = to_daemon(context).await?.feeds().await?;
    let now_ms = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().as_millis() as u64;
    context.answer(&reply, || describe(&reply, now_ms, output_width()))
}

/// The feeds at the time `now_ms`, for a terminal of this width.
fn describe(
    FeedsReply { feeds, reserved_bytes, memory_bytes }: &FeedsReply,
    now_ms: u64,
    width: Option<usize>,
) -> String {
    let titles = [
        "FEED",
        "STATE",
        "OWNER",
        ">RANKS",
        ">ROWS",
        ">BATCHES",
        ">ROWS/S",
        "BOTTLENECK",
        ">READ",
        ">MEMORY",
        ">AGE",
        "RUN",
    ];
    let mut table = Table::with_titles(&titles);
    for feed in feeds {
        table.cells(cells(feed, now_ms));
    }
    let memory = format!(
        "{} of {} reserved by {}",
        figures::bytes(*reserved_bytes),
        figures::bytes(*memory_bytes),
        figures::counted(feeds.len() as u64, "feed"),
    );
    format!("{}\n{memory}\n", table.fitted(width, &EXPENDABLE).render())
}

fn cells(feed: &Feed, now_ms: u64) -> Vec<String> {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let ranks = match feed.attached == feed.ranks {
        true => feed.ranks.to_string(),
        false => format!("{} of {}", feed.attached, feed.ranks),
    };
    vec![
        feed.id.clone(),
        feed.state.clone(),
        printable(&feed.owner).into_owned(),
        ranks,
        figures::count(feed.rows),
        figures::count(feed.batches),
        or_dash(feed.rows_per_second.map(figures::rate)),
        or_dash(feed.bound.clone()),
        figures::bytes(feed.read_bytes),
        figures::bytes(feed.memory_bytes),
        figures::age(Duration::from_millis(now_ms.saturating_sub(feed.began_ms))),
        or_dash(feed.run.as_deref().map(|run| printable(run).into_owned())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn feeds_are_listed_with_the_memory_of_all() {
        let feeding = Feed {
            id: "feed-k3f9q2".into(),
            state: "feeding".into(),
            owner: "ann".into(),
            run: Some("process 7 0".into()),
            ranks: 8,
            attached: 8,
            began_ms: 1_000,
            memory_bytes: 2 << 30,
            rows: 1_234_567,
            batches: 1_206,
            read_bytes: 5 << 20,
            rows_per_second: Some(250_000.0),
            bound: Some("consumer".into()),
        };
        let opening = Feed {
            id: "feed-mqzw38".into(),
            state: "opening".into(),
            attached: 1,
            ranks: 2,
            rows_per_second: None,
            bound: None,
            run: None,
            ..feeding.clone()
        };
        let reply =
            FeedsReply { feeds: vec![feeding, opening], reserved_bytes: 4 << 30, memory_bytes: 8 << 30 };
        let text = describe(&reply, 61_000, None);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        for part in [
            "feed-k3f9q2",
            "feeding",
            "ann",
            " 8 ",
            "1,234,567",
            "1,206",
            "consumer",
            "2.0 GiB",
            "process 7 0",
        ] {
            assert!(lines[1].contains(part), "{part}\n{text}");
        }
        assert!(
            lines[2].contains("opening") && lines[2].contains("1 of 2") && lines[2].contains(" - "),
            "{text}"
        );
        assert_eq!(lines[3..], ["", "4.0 GiB of 8.0 GiB reserved by 2 feeds"]);
    }
}
