//! Messages of a leader.

use std::time::Duration;

use super::{Decoded, decode_addresses, decode_assignment, decode_generation, decode_host, decode_hosts};
use super::{decode_note, encode_note};
use super::{
    decode_snapshot, decode_step, decode_tries, encode_addresses, encode_assignment, encode_generation,
};
use super::{encode_snapshot, encode_time, encode_tries, malformed, required};
use crate::HostName;
use crate::generations::{Outcome, Reason, Start, ToMember, When};
use crate::proto::from_leader::Message;
use crate::proto::{self, FromLeader, Nothing, start_from::From};

pub(in super::super) fn encode_from_leader(message: ToMember) -> FromLeader {
    let message = match message {
        ToMember::Lead => Message::Lead(Nothing {}),
        ToMember::Answer { sent } => Message::Answer(proto::Answer { sent_ns: encode_time(sent) }),
        ToMember::Propose { generation, assignment, tries } => Message::Propose(proto::Propose {
            generation: encode_generation(generation),
            assignment: encode_assignment(assignment),
            tries: encode_tries(tries),
        }),
        ToMember::Begin { generation, start, senders, addresses } => {
            let sender = |(to, from): (HostName, HostName)| proto::Sender {
                to: to.to_string(),
                from: from.to_string(),
            };
            Message::Begin(proto::Begin {
                generation: encode_generation(generation),
                start: encode_start(start),
                senders: senders.into_iter().map(sender).collect(),
                addresses: encode_addresses(&addresses),
            })
        }
        ToMember::End { generation, when, why } => {
            let after_step = if let When::AfterStep(step) = when { Some(step) } else { None };
            let why = why.map(|why| why.to_string());
            Message::End(proto::End { generation: encode_generation(generation), after_step, why })
        }
        ToMember::Over { outcome } => Message::Over(encode_outcome(&outcome)),
        ToMember::Note { generation, note } => Message::Note(encode_note(generation, &note)),
    };
    FromLeader { message: Some(message) }
}

pub(in super::super) fn decode_from_leader(message: FromLeader) -> Decoded<ToMember> {
    Ok(match required(message.message, "message")? {
        Message::Opening(_) => return malformed("the call is opened twice"),
        Message::Lead(Nothing {}) => ToMember::Lead,
        Message::Answer(answer) => ToMember::Answer { sent: Duration::from_nanos(answer.sent_ns) },
        Message::Propose(proto::Propose { generation, assignment, tries }) => ToMember::Propose {
            generation: decode_generation(generation)?,
            assignment: decode_assignment(assignment)?,
            tries: decode_tries(tries)?,
        },
        Message::Begin(begin) => decode_begin(begin)?,
        Message::End(proto::End { generation, after_step, why }) => ToMember::End {
            generation: decode_generation(generation)?,
            when: after_step.map(decode_step).transpose()?.map_or(When::Now, When::AfterStep),
            why: why.as_deref().map(Reason::new),
        },
        Message::Over(outcome) => ToMember::Over { outcome: decode_outcome(outcome) },
        Message::Note(note) => {
            let (generation, note) = decode_note(note)?;
            ToMember::Note { generation, note }
        }
    })
}

fn decode_begin(begin: proto::Begin) -> Decoded<ToMember> {
    let proto::Begin { generation, start, senders, addresses } = begin;
    let pair = |proto::Sender { to, from }| Ok((decode_host(&to)?, decode_host(&from)?));
    Ok(ToMember::Begin {
        generation: decode_generation(generation)?,
        start: decode_start(start)?,
        senders: decode_hosts(senders.into_iter().map(pair))?,
        addresses: decode_addresses(addresses)?,
    })
}

fn encode_start(start: Start) -> Option<proto::StartFrom> {
    let from = match start {
        Start::Scratch => From::Scratch(Nothing {}),
        Start::Checkpoint(snapshot) => From::Checkpoint(encode_snapshot(snapshot)),
        Start::Image(snapshot) => From::Image(encode_snapshot(snapshot)),
    };
    Some(proto::StartFrom { from: Some(from) })
}

fn decode_start(start: Option<proto::StartFrom>) -> Decoded<Start> {
    Ok(match required(start.and_then(|start| start.from), "start")? {
        From::Scratch(Nothing {}) => Start::Scratch,
        From::Checkpoint(snapshot) => Start::Checkpoint(decode_snapshot(snapshot)?),
        From::Image(snapshot) => Start::Image(decode_snapshot(snapshot)?),
    })
}

fn encode_outcome(outcome: &Outcome) -> proto::JobOutcome {
    let failure = if let Outcome::Failed(reason) = outcome { Some(reason.to_string()) } else { None };
    proto::JobOutcome { failure }
}

fn decode_outcome(proto::JobOutcome { failure }: proto::JobOutcome) -> Outcome {
    failure.map_or(Outcome::Finished, |reason| Outcome::Failed(Reason::new(&reason)))
}
