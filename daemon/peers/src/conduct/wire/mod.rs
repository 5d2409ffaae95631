//! The messages of generations as protobuf.
//!
//! Encoding is total. Decoding checks every bound and everything that the state machines rely on, so they need not check again:
//! hosts, ranks, addresses and steps are bounded, an assignment's ranks are `0..world`, and failures have a reason. Texts of
//! reasons are cut.

mod from_leader;
mod from_member;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::time::Duration;

pub(super) use self::from_leader::{decode_from_leader, encode_from_leader};
pub(super) use self::from_member::{decode_from_member, encode_from_member};
use crate::HostName;
use crate::generations::{
    Address, Assignment, GenerationId, MAX_HOSTS, Note, Ranks, Reason, Role, Snapshot, Tries,
};
use crate::proto;

/// The most ranks of a generation. With addresses and names of full length, they fit a message.
pub const MAX_RANKS: u32 = 4096;

/// The most bytes of the address of a rank's worker. Over TCP it has about 70 bytes, and 29 (IPv4) or 41 (IPv6) for each network
/// interface.
pub const MAX_ADDRESS_BYTES: usize = 512;

/// The most bytes of a note.
pub const MAX_NOTE_BYTES: usize = 1 << 20;

/// The highest step, which leaves room to count on.
const MAX_STEP: u64 = i64::MAX as u64;

/// A message of another host that breaks the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed message: {0}")]
pub(super) struct Malformed(String);

type Decoded<T> = Result<T, Malformed>;

fn malformed<T>(message: impl Into<String>) -> Decoded<T> {
    Err(Malformed(message.into()))
}

/// The field `name` of a message.
fn required<T>(field: Option<T>, name: &str) -> Decoded<T> {
    field.ok_or_else(|| Malformed(format!("`{name}` is missing")))
}

fn encode_note(generation: GenerationId, note: &Note) -> proto::Note {
    proto::Note { generation: encode_generation(generation), content: note.to_vec() }
}

fn decode_note(proto::Note { generation, content }: proto::Note) -> Decoded<(GenerationId, Note)> {
    if content.len() > MAX_NOTE_BYTES {
        return malformed(format!("a note of {} bytes, more than {MAX_NOTE_BYTES}", content.len()));
    }
    Ok((decode_generation(generation)?, content.into()))
}

fn encode_time(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn decode_step(step: u64) -> Decoded<u64> {
    if step > MAX_STEP {
        return malformed(format!("step {step} is out of range (0 to {MAX_STEP})"));
    }
    Ok(step)
}

fn encode_generation(GenerationId { epoch, number }: GenerationId) -> Option<proto::GenerationId> {
    Some(proto::GenerationId { epoch, number })
}

fn decode_generation(generation: Option<proto::GenerationId>) -> Decoded<GenerationId> {
    let proto::GenerationId { epoch, number } = required(generation, "generation")?;
    Ok(GenerationId { epoch, number })
}

fn encode_snapshot(Snapshot { step, generation }: Snapshot) -> proto::Snapshot {
    proto::Snapshot { generation: encode_generation(generation), step }
}

fn decode_snapshot(proto::Snapshot { generation, step }: proto::Snapshot) -> Decoded<Snapshot> {
    Ok(Snapshot { step: decode_step(step)?, generation: decode_generation(generation)? })
}

fn encode_tries(tries: Tries) -> Option<proto::Tries> {
    let (newest, failures, reason) = tries.into_parts();
    Some(proto::Tries { newest, failures, reason: reason.map(|reason| reason.to_string()) })
}

fn decode_tries(tries: Option<proto::Tries>) -> Decoded<Tries> {
    let proto::Tries { newest, failures, reason } = required(tries, "tries")?;
    let newest = newest.map(decode_step).transpose()?;
    let reason = reason.map(|reason| Reason::new(&reason));
    let tries = Tries::of_parts(newest, failures, reason);
    tries.ok_or_else(|| Malformed(format!("{failures} failures without a reason")))
}

fn decode_host(host: &str) -> Decoded<HostName> {
    HostName::parse(host).map_err(|error| Malformed(error.to_string()))
}

/// The pairs as a map with at most [`MAX_HOSTS`] keys, each of which comes once.
fn decode_hosts<T>(
    hosts: impl ExactSizeIterator<Item = Decoded<(HostName, T)>>,
) -> Decoded<BTreeMap<HostName, T>> {
    let count = hosts.len();
    if count > MAX_HOSTS {
        return malformed(format!("{count} hosts are more than {MAX_HOSTS}"));
    }
    let hosts = hosts.collect::<Decoded<BTreeMap<_, _>>>()?;
    if hosts.len() < count {
        return malformed("a host comes twice");
    }
    Ok(hosts)
}

/// Whether workers with this role reduce.
fn encode_role(role: Role) -> bool {
    role == Role::Reduce
}

fn decode_role(reduces: bool) -> Role {
    if reduces { Role::Reduce } else { Role::Train }
}

fn encode_assignment(assignment: Assignment) -> Vec<proto::HostRanks> {
    let ranks = |(host, Ranks { role, first, count }): (HostName, _)| proto::HostRanks {
        host: host.to_string(),
        first,
        count,
        reduces: encode_role(role),
    };
    assignment.into_iter().map(ranks).collect()
}

fn decode_assignment(hosts: Vec<proto::HostRanks>) -> Decoded<Assignment> {
    let hosts = hosts.into_iter().map(|proto::HostRanks { host, first, count, reduces }| {
        if count == 0 {
            return malformed(format!("{host} has no ranks"));
        }
        Ok((decode_host(&host)?, Ranks { role: decode_role(reduces), first, count }))
    });
    let assignment = decode_hosts(hosts)?;
    let mut ranks: Vec<_> = assignment.values().collect();
    ranks.sort_by_key(|ranks| ranks.first);
    if !ranks.is_sorted_by_key(|ranks| encode_role(ranks.role)) {
        return malformed("the numbers of reducers do not follow the ranks");
    }
    let mut next = 0_u32;
    for Ranks { first, count, .. } in ranks {
        if *first != next {
            return malformed(format!("the ranks of a host begin with {first} instead of {next}"));
        }
        next = next.saturating_add(*count);
        if next > MAX_RANKS {
            return malformed(format!("{next} ranks are more than {MAX_RANKS}"));
        }
    }
    Ok(assignment)
}

fn encode_addresses(addresses: &[Address]) -> Vec<Vec<u8>> {
    addresses.iter().map(|address| address.to_vec()).collect()
}

fn decode_addresses(addresses: Vec<Vec<u8>>) -> Decoded<Vec<Address>> {
    if addresses.len() > MAX_RANKS as usize {
        return malformed(format!("{} addresses are more than {MAX_RANKS}", addresses.len()));
    }
    if let Some(long) = addresses.iter().find(|address| address.len() > MAX_ADDRESS_BYTES) {
        return malformed(format!("an address of {} bytes is longer than {MAX_ADDRESS_BYTES}", long.len()));
    }
    Ok(addresses.into_iter().map(Address::from).collect())
}
