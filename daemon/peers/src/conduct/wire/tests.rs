//! Any message survives the round trip; anything else is refused.
#![allow(clippy::unwrap_used)]

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::generations::{Offer, Outcome, Start, ToLeader, ToMember, When};
use crate::proto::{FromLeader, FromMember, Nothing, from_leader, from_member};
use crate::server::MAX_MESSAGE_BYTES;

fn host() -> impl Strategy<Value = HostName> {
    "[a-z][a-z0-9]{0,5}(\\.[a-z]{1,3})?".prop_map(|name| HostName::parse(&name).unwrap())
}

fn generation() -> impl Strategy<Value = GenerationId> {
    any::<(u64, u64)>().prop_map(|(epoch, number)| GenerationId { epoch, number })
}

fn step() -> impl Strategy<Value = u64> {
    0..=MAX_STEP
}

fn snapshot() -> impl Strategy<Value = Snapshot> {
    (step(), generation()).prop_map(|(step, generation)| Snapshot { step, generation })
}

fn reason() -> impl Strategy<Value = Reason> {
    ".{0,2000}".prop_map(|text| Reason::new(&text))
}

fn tries() -> impl Strategy<Value = Tries> {
    let parts = (option::of(step()), any::<u32>(), option::of(reason()));
    parts.prop_map(|(newest, failures, reason)| {
        let failures = if reason.is_some() { failures } else { 0 };
        Tries::of_parts(newest, failures, reason).unwrap()
    })
}

/// Ranks that are not in the order of names.
fn assignment() -> impl Strategy<Value = Assignment> {
    (btree_map(host(), 1..9_u32, 0..9), 0..9_usize).prop_map(|(counts, training)| {
        let mut first = 0;
        let ranks = counts.into_iter().rev().enumerate().map(|(place, (host, count))| {
            let role = if place < training { Role::Train } else { Role::Reduce };
            let ranks = Ranks { role, first, count };
            first += count;
            (host, ranks)
        });
        ranks.collect()
    })
}

fn addresses() -> impl Strategy<Value = Vec<Address>> {
    vec(vec(any::<u8>(), 0..=MAX_ADDRESS_BYTES).prop_map(Address::from), 0..9)
}

fn time() -> impl Strategy<Value = Duration> {
    any::<u64>().prop_map(Duration::from_nanos)
}

fn note() -> impl Strategy<Value = Note> {
    vec(any::<u8>(), 0..99).prop_map(Note::from)
}

fn start() -> impl Strategy<Value = Start> {
    prop_oneof![
        Just(Start::Scratch),
        snapshot().prop_map(Start::Checkpoint),
        snapshot().prop_map(Start::Image),
    ]
}

fn to_member() -> impl Strategy<Value = ToMember> {
    let outcome = prop_oneof![Just(Outcome::Finished), reason().prop_map(Outcome::Failed)];
    let when = prop_oneof![Just(When::Now), step().prop_map(When::AfterStep)];
    prop_oneof![
        Just(ToMember::Lead),
        time().prop_map(|sent| ToMember::Answer { sent }),
        (generation(), assignment(), tries()).prop_map(|(generation, assignment, tries)| ToMember::Propose {
            generation,
            assignment,
            tries
        }),
        (generation(), start(), btree_map(host(), host(), 0..9), addresses()).prop_map(
            |(generation, start, senders, addresses)| ToMember::Begin {
                generation,
                start,
                senders,
                addresses
            }
        ),
        (generation(), when, option::of(reason())).prop_map(|(generation, when, why)| ToMember::End {
            generation,
            when,
            why
        }),
        outcome.prop_map(|outcome| ToMember::Over { outcome }),
        (generation(), note()).prop_map(|(generation, note)| ToMember::Note { generation, note }),
    ]
}

fn offer() -> impl Strategy<Value = Offer> {
    (any::<bool>(), any::<u32>()).prop_map(|(reduces, count)| Offer { role: decode_role(reduces), count })
}

fn to_leader() -> impl Strategy<Value = ToLeader> {
    let holds = || option::of(snapshot());
    prop_oneof![
        (time(), offer(), holds(), tries()).prop_map(|(sent, offer, holds, tries)| ToLeader::Hello {
            sent,
            offer,
            holds,
            tries
        }),
        Just(ToLeader::Deposed),
        offer().prop_map(|offer| ToLeader::Offer { offer }),
        (generation(), holds(), addresses()).prop_map(|(generation, holds, addresses)| ToLeader::Joined {
            generation,
            holds,
            addresses
        }),
        (generation(), reason()).prop_map(|(generation, why)| ToLeader::Refused { generation, why }),
        (time(), option::of((generation(), step())), holds())
            .prop_map(|(sent, step, holds)| ToLeader::Beat { sent, step, holds }),
        (generation(), reason(), any::<bool>()).prop_map(|(generation, why, is_of_peer)| ToLeader::Lost {
            generation,
            why,
            is_of_peer
        }),
        (generation(), step()).prop_map(|(generation, step)| ToLeader::Saved { generation, step }),
        (generation(), step()).prop_map(|(generation, step)| ToLeader::AtEnd { generation, step }),
        (generation(), note()).prop_map(|(generation, note)| ToLeader::Note { generation, note }),
        (generation(), holds()).prop_map(|(generation, holds)| ToLeader::Ended { generation, holds }),
    ]
}

/// Decodes both ways; only a panic fails.
fn decode_any(bytes: &[u8]) {
    let _ = FromLeader::decode(bytes).map(decode_from_leader);
    let _ = FromMember::decode(bytes).map(decode_from_member);
}

proptest! {
    #[test]
    fn messages_of_leaders_survive(message in to_member()) {
        let bytes = encode_from_leader(message.clone()).encode_to_vec();
        prop_assert_eq!(decode_from_leader(FromLeader::decode(&*bytes).unwrap()), Ok(message));
    }

    #[test]
    fn messages_of_members_survive(epoch in any::<u64>(), message in to_leader()) {
        let bytes = encode_from_member(epoch, message.clone()).encode_to_vec();
        prop_assert_eq!(decode_from_member(FromMember::decode(&*bytes).unwrap()), Ok((epoch, message)));
    }

    #[test]
    fn random_bytes_do_not_panic(bytes in vec(any::<u8>(), 0..200)) {
        decode_any(&bytes);
    }

    #[test]
    fn damaged_messages_do_not_panic(
        down in to_member(),
        up in to_leader(),
        (at, byte, is_cut) in any::<(prop::sample::Index, u8, bool)>(),
    ) {
        for mut bytes in [encode_from_leader(down).encode_to_vec(), encode_from_member(1, up).encode_to_vec()] {
            let at = at.index(bytes.len());
            bytes[at] = byte;
            bytes.truncate(if is_cut { at + 1 } else { bytes.len() });
            decode_any(&bytes);
        }
    }
}

#[test]
fn the_largest_message_fits() {
    let name = |number: usize| {
        let label = "x".repeat(63);
        HostName::parse(&format!("{number:05}.{label}.{label}.{label}.{}", "x".repeat(55))).unwrap()
    };
    assert_eq!(name(0).as_str().len(), 253);
    let id = GenerationId { epoch: u64::MAX, number: u64::MAX };
    let per_host = MAX_RANKS / MAX_HOSTS as u32;
    let ranks = |host: usize| Ranks { role: Role::Train, first: host as u32 * per_host, count: per_host };
    let assignment = (0..MAX_HOSTS).map(|host| (name(host), ranks(host))).collect();
    let tries = Tries::of_parts(Some(MAX_STEP), u32::MAX, Some(Reason::new(&"x".repeat(9999)))).unwrap();
    let begin = ToMember::Begin {
        generation: id,
        start: Start::Image(Snapshot { step: MAX_STEP, generation: id }),
        senders: (0..MAX_HOSTS).map(|host| (name(host), name(0))).collect(),
        addresses: vec![Address::from([7; MAX_ADDRESS_BYTES]); MAX_RANKS as usize],
    };
    for message in [ToMember::Propose { generation: id, assignment, tries }, begin] {
        let encoded = encode_from_leader(message.clone());
        assert!(encoded.encoded_len() <= MAX_MESSAGE_BYTES, "{} bytes", encoded.encoded_len());
        assert_eq!(decode_from_leader(encoded), Ok(message));
    }
}

fn refused_by_member(message: from_leader::Message) -> String {
    decode_from_leader(FromLeader { message: Some(message) }).unwrap_err().to_string()
}

fn refused_by_leader(message: from_member::Message) -> String {
    decode_from_member(FromMember { epoch: 1, message: Some(message) }).unwrap_err().to_string()
}

#[test]
fn malformed_assignments_are_refused() {
    let generation = encode_generation(GenerationId { epoch: 1, number: 1 });
    let refused = |hosts: &[(&str, u32, u32)]| {
        let host = |&(host, first, count): &(&str, _, _)| {
            // Those with a capital letter reduce.
            let reduces = host.starts_with(char::is_uppercase);
            proto::HostRanks { host: host.to_owned(), first, count, reduces }
        };
        let assignment = hosts.iter().map(host).collect();
        let tries = encode_tries(Tries::default());
        refused_by_member(from_leader::Message::Propose(proto::Propose { generation, assignment, tries }))
    };
    let many: Vec<_> = (0..=MAX_HOSTS as u32).map(|rank| ("a", rank, 1)).collect();
    for (hosts, wanted) in [
        (&[("a", 0, 1), ("A", 1, 1)][..], "a host comes twice"),
        (&[("a", 0, 0)], "a has no ranks"),
        (&[("a", 0, 2), ("b", 1, 1)], "the ranks of a host begin with 1 instead of 2"),
        (&[("a", 0, 1), ("b", 2, 1)], "the ranks of a host begin with 2 instead of 1"),
        (&[("a", 0, 4096), ("b", 4096, u32::MAX)], "4294967295 ranks are more than 4096"),
        (&[("a b", 0, 1)], "`a b` is not a host name"),
        (&[("B", 0, 1), ("a", 1, 1)], "the numbers of reducers do not follow the ranks"),
        (&many, "1025 hosts are more than 1024"),
    ] {
        let message = refused(hosts);
        assert!(message.contains(wanted), "{message}");
    }
}

#[test]
fn other_malformed_messages_are_refused() {
    let generation = encode_generation(GenerationId { epoch: 1, number: 1 });
    let joined = |addresses| {
        refused_by_leader(from_member::Message::Joined(proto::Joined { generation, holds: None, addresses }))
    };
    let beyond = proto::GenerationStep { generation, step: MAX_STEP + 1 };
    let tries = Some(proto::Tries { failures: 3, ..proto::Tries::default() });
    let offer = Some(proto::Offer::default());
    let hello = proto::Hello { tries, offer, ..proto::Hello::default() };
    let opening = proto::FollowOpening { run: "gs://b/run".to_owned(), epoch: 1 };
    for (message, wanted) in [
        (joined(vec![vec![0; MAX_ADDRESS_BYTES + 1]]), "an address of 513 bytes is longer than 512"),
        (joined(vec![Vec::new(); MAX_RANKS as usize + 1]), "4097 addresses are more than 4096"),
        (refused_by_leader(from_member::Message::Saved(beyond)), "step 9223372036854775808 is out of range"),
        (refused_by_leader(from_member::Message::Hello(hello)), "3 failures without a reason"),
        (refused_by_leader(from_member::Message::Hello(proto::Hello::default())), "`offer` is missing"),
        (refused_by_leader(from_member::Message::Ended(proto::Ended::default())), "`generation` is missing"),
        (refused_by_member(from_leader::Message::Opening(opening)), "the call is opened twice"),
        (
            refused_by_member(from_leader::Message::Begin(proto::Begin { generation, ..Default::default() })),
            "`start` is missing",
        ),
    ] {
        assert!(message.contains(wanted), "{message}");
    }
    assert_eq!(
        decode_from_leader(FromLeader { message: None }).unwrap_err().to_string(),
        "malformed message: `message` is missing"
    );
    assert_eq!(
        decode_from_leader(FromLeader { message: Some(from_leader::Message::Lead(Nothing {})) }),
        Ok(ToMember::Lead)
    );
}
