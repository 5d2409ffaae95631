//! Converts profiles to messages: progress, then the summary, then the spans.

use std::iter;

use anyhow::{Context, anyhow};
use futures::stream::StreamExt;
use millstream_control::proto::profile_reply::Reply;
use millstream_control::proto::{self, ProfileReply};
use millstream_trace::{Span, Track};
use tokio::sync::mpsc::{Sender, channel};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{Replies, error_status};
use crate::messages::diagnosis_message;
use crate::supervisor::{PendingProfile, Profile};

/// Spans per message: a few hundred KB.
const SPANS_PER_MESSAGE: usize = 4096;

/// Messages buffered for the client.
const MESSAGE_QUEUE: usize = 4;

/// Streams the replies to `pending`, a profile of job `id`. Dropping the stream cancels the profile.
pub(super) fn replies(id: String, pending: PendingProfile) -> Replies<ProfileReply> {
    let (sender, receiver) = channel(MESSAGE_QUEUE);
    tokio::spawn(async move {
        tokio::select! {
            () = sender.closed() => {}
            () = send_all(id, pending, &sender) => {}
        }
    });
    ReceiverStream::new(receiver).boxed()
}

/// Sends progress, then the profile. A failed send means that the client has disconnected.
async fn send_all(id: String, pending: PendingProfile, sender: &Sender<Result<ProfileReply, Status>>) {
    let PendingProfile { mut progress, mut done } = pending;
    let reply_message = |reply| Ok(ProfileReply { reply: Some(reply) });
    let profile = loop {
        tokio::select! {
            profile = &mut done => break profile,
            Ok(()) = progress.changed() => {
                let steps = *progress.borrow_and_update();
                if sender.send(reply_message(Reply::RecordedSteps(steps))).await.is_err() {
                    return;
                }
            }
        }
    };
    let profile = match profile {
        Ok(profile) => profile.with_context(|| format!("job {id}")),
        Err(_) => Err(anyhow!("job {id} ended before a step was recorded")),
    };
    match profile {
        Ok(profile) => {
            for reply in messages(id, profile) {
                if sender.send(reply_message(reply)).await.is_err() {
                    return;
                }
            }
        }
        Err(error) => drop(sender.send(Err(error_status(error))).await),
    }
}

fn messages(id: String, profile: Profile) -> impl Iterator<Item = Reply> {
    let Profile { worker, rank, ranks, pid, tracks, ingest, input } = profile;
    let summary = proto::Profile {
        id,
        began_ns: worker.began_ns,
        ended_ns: worker.ended_ns,
        after_step: worker.after_step,
        steps: worker.steps,
        full: worker.is_full,
        examples: worker.examples,
        dropped_spans: ingest.dropped,
        bytes_per_second: worker.floors.bytes_per_second,
        flops_per_second: worker.floors.flops_per_second,
        precision: worker.precision.name().to_owned(),
        ingest: Some(diagnosis_message(&input)),
        rank,
        ranks,
    };
    let process_tracks = |process: String, pid, tracks: Vec<Track>| {
        let numbered = (1..).zip(tracks);
        numbered.flat_map(move |(number, track)| track_messages(process.clone(), pid, number, track))
    };
    let worker = match ranks {
        1 => "millstream worker".to_owned(),
        _ => format!("millstream worker {rank}"),
    };
    let spans = process_tracks(worker, pid, tracks).chain(process_tracks(
        "millstream ingest".to_owned(),
        std::process::id(),
        ingest.tracks,
    ));
    iter::once(Reply::Profile(summary)).chain(spans.map(Reply::Track))
}

fn track_messages(
    process: String,
    pid: u32,
    number: u32,
    track: Track,
) -> impl Iterator<Item = proto::Track> {
    let Track { name, spans } = track;
    let mut spans = spans.into_iter();
    iter::from_fn(move || {
        let spans: Vec<_> = spans.by_ref().take(SPANS_PER_MESSAGE).map(span_message).collect();
        let (process, name) = (process.clone(), name.clone());
        (!spans.is_empty()).then_some(proto::Track { process, pid, name, number, spans })
    })
}

fn span_message(span: Span) -> proto::Span {
    let [inputs, outputs] = span.shape.unwrap_or_default();
    proto::Span {
        name: span.name.into_owned(),
        category: span.category.name().to_owned(),
        phase: span.phase.map(|phase| phase.name().to_owned()).unwrap_or_default(),
        start_ns: span.start_ns,
        end_ns: span.end_ns,
        rows: span.work.rows,
        bytes: span.work.bytes,
        flops: span.work.flops,
        inputs,
        outputs,
    }
}
