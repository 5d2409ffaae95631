//! Messages of a member.

use std::time::Duration;

use super::{Decoded, decode_addresses, decode_generation, decode_snapshot, decode_step, decode_tries};
use super::{decode_note, encode_note};
use super::{decode_role, encode_role};
use super::{encode_addresses, encode_generation, encode_snapshot, encode_time, encode_tries, required};
use crate::generations::{GenerationId, Offer, Reason, Snapshot, ToLeader};
use crate::proto::from_member::Message;
use crate::proto::{self, FromMember, GenerationStep, Nothing};

pub(in super::super) fn encode_from_member(epoch: u64, message: ToLeader) -> FromMember {
    let message = match message {
        ToLeader::Hello { sent, offer, holds, tries } => Message::Hello(proto::Hello {
            sent_ns: encode_time(sent),
            offer: Some(encode_offer(offer)),
            holds: holds.map(encode_snapshot),
            tries: encode_tries(tries),
        }),
        ToLeader::Deposed => Message::Deposed(Nothing {}),
        ToLeader::Offer { offer } => Message::Offer(encode_offer(offer)),
        ToLeader::Joined { generation, holds, addresses } => Message::Joined(proto::Joined {
            generation: encode_generation(generation),
            holds: holds.map(encode_snapshot),
            addresses: encode_addresses(&addresses),
        }),
        ToLeader::Refused { generation, why } => Message::Refused(proto::Refused {
            generation: encode_generation(generation),
            why: why.to_string(),
        }),
        ToLeader::Beat { sent, step, holds } => Message::Beat(proto::Beat {
            sent_ns: encode_time(sent),
            step: step.map(|(generation, step)| encode_at(generation, step)),
            holds: holds.map(encode_snapshot),
        }),
        ToLeader::Lost { generation, why, is_of_peer } => {
            let generation = encode_generation(generation);
            Message::Lost(proto::Lost { generation, why: why.to_string(), is_of_peer })
        }
        ToLeader::Saved { generation, step } => Message::Saved(encode_at(generation, step)),
        ToLeader::AtEnd { generation, step } => Message::AtEnd(encode_at(generation, step)),
        ToLeader::Note { generation, note } => Message::Note(encode_note(generation, &note)),
        ToLeader::Ended { generation, holds } => {
            let holds = holds.map(encode_snapshot);
            Message::Ended(proto::Ended { generation: encode_generation(generation), holds })
        }
    };
    FromMember { epoch, message: Some(message) }
}

fn encode_offer(Offer { role, count }: Offer) -> proto::Offer {
    proto::Offer { count, reduces: encode_role(role) }
}

fn decode_offer(proto::Offer { count, reduces }: proto::Offer) -> Offer {
    Offer { role: decode_role(reduces), count }
}

/// The message, and its epoch.
pub(in super::super) fn decode_from_member(message: FromMember) -> Decoded<(u64, ToLeader)> {
    let decoded = match required(message.message, "message")? {
        Message::Hello(proto::Hello { sent_ns, offer, holds, tries }) => ToLeader::Hello {
            sent: Duration::from_nanos(sent_ns),
            offer: decode_offer(required(offer, "offer")?),
            holds: decode_holds(holds)?,
            tries: decode_tries(tries)?,
        },
        Message::Deposed(Nothing {}) => ToLeader::Deposed,
        Message::Offer(offer) => ToLeader::Offer { offer: decode_offer(offer) },
        Message::Joined(proto::Joined { generation, holds, addresses }) => ToLeader::Joined {
            generation: decode_generation(generation)?,
            holds: decode_holds(holds)?,
            addresses: decode_addresses(addresses)?,
        },
        Message::Refused(proto::Refused { generation, why }) => {
            ToLeader::Refused { generation: decode_generation(generation)?, why: Reason::new(&why) }
        }
        Message::Beat(proto::Beat { sent_ns, step, holds }) => ToLeader::Beat {
            sent: Duration::from_nanos(sent_ns),
            step: step.map(decode_at).transpose()?,
            holds: decode_holds(holds)?,
        },
        Message::Lost(proto::Lost { generation, why, is_of_peer }) => {
            let (generation, why) = (decode_generation(generation)?, Reason::new(&why));
            ToLeader::Lost { generation, why, is_of_peer }
        }
        Message::Saved(at) => {
            let (generation, step) = decode_at(at)?;
            ToLeader::Saved { generation, step }
        }
        Message::AtEnd(at) => {
            let (generation, step) = decode_at(at)?;
            ToLeader::AtEnd { generation, step }
        }
        Message::Note(note) => {
            let (generation, note) = decode_note(note)?;
            ToLeader::Note { generation, note }
        }
        Message::Ended(proto::Ended { generation, holds }) => {
            ToLeader::Ended { generation: decode_generation(generation)?, holds: decode_holds(holds)? }
        }
    };
    Ok((message.epoch, decoded))
}

fn encode_at(generation: GenerationId, step: u64) -> GenerationStep {
    GenerationStep { generation: encode_generation(generation), step }
}

fn decode_at(GenerationStep { generation, step }: GenerationStep) -> Decoded<(GenerationId, u64)> {
    Ok((decode_generation(generation)?, decode_step(step)?))
}

fn decode_holds(holds: Option<proto::Snapshot>) -> Decoded<Option<Snapshot>> {
    holds.map(decode_snapshot).transpose()
}
