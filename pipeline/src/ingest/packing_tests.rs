//! Feeds whose rows are documents of tokens, packed into sequences.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use millstream_batch::{BatchRef, BatchSchema, Column, Consumer, Dtype};
use proptest::prelude::*;

use super::synthetic::spec;
use super::*;
use crate::chunk::{Chunk, ChunkColumn};
use crate::order::Packing;
use crate::sequences::{SequenceColumns, SequenceSpec, TokenColumn};
use crate::spec::DataSpec;

/// The values of padding.
const PAD: i32 = -1;
const PAD_WEIGHT: u8 = 9;

/// Documents of two columns: the token at a place of a document is a number that occurs once, and its weight follows from
/// that.
#[derive(Clone, Debug)]
struct Documents {
    /// The tokens of each document of each split.
    lengths: Vec<Vec<u32>>,
    length: u32,
    how: Packing,
    chunk_rows: usize,
    average: u32,
}

/// A token of document `document` of `split`.
fn token(split: u32, document: usize, place: u32) -> i32 {
    (split << 24 | (document as u32) << 10 | place) as i32
}

fn weight(token: i32) -> u8 {
    (token % 7) as u8
}

struct Reader {
    documents: Documents,
    split: u32,
    next: usize,
}

impl ChunkSource for Documents {
    fn splits(&self) -> u32 {
        self.lengths.len() as u32
    }

    fn cuts(&self) -> u64 {
        0
    }

    fn sequences(&self) -> Option<SequenceColumns> {
        let column = |dtype: Dtype, pad: Vec<u8>| TokenColumn {
            dtype,
            pad,
            average: Some(self.average),
            maximum: u32::MAX,
            added: 0,
            tokenizer: 0,
        };
        let columns =
            vec![column(Dtype::Int32, PAD.to_ne_bytes().to_vec()), column(Dtype::Uint8, vec![PAD_WEIGHT])];
        Some(SequenceColumns::new(self.spec(), columns))
    }

    fn lane_bytes(&self, _chunk_rows: usize) -> u64 {
        1000
    }

    fn open(&self, split: u32, _from: u64, _: &Permit, _: &Arc<Counters>) -> Result<Opened, Error> {
        let reader = Reader { documents: self.clone(), split, next: 0 };
        Ok(Opened { reader: Box::new(reader), passed: 0 })
    }
}

impl ChunkReader for Reader {
    fn next(&mut self, max_rows: usize) -> Result<Option<Chunk>, Error> {
        let Self { documents, split, next } = self;
        let lengths = &documents.lengths[*split as usize];
        let rows = *next..lengths.len().min(*next + max_rows.min(documents.chunk_rows));
        *next = rows.end;
        let mut offsets = vec![0];
        let mut tokens = Vec::new();
        for document in rows.clone() {
            tokens.extend((0..lengths[document]).map(|place| token(*split, document, place)));
            offsets.push(tokens.len() as u32);
        }
        let weights = tokens.iter().copied().map(weight).collect();
        let tokens = tokens.into_iter().flat_map(i32::to_ne_bytes).collect();
        let column = |value_bytes, values: Vec<u8>| ChunkColumn::Ragged {
            value_bytes,
            offsets: offsets.clone(),
            values: values.into(),
        };
        Ok((!rows.is_empty()).then(|| Chunk {
            labels: vec![vec![0.0; rows.len()]],
            columns: vec![column(4, tokens), column(1, weights)],
            ..Chunk::default()
        }))
    }

    fn left_out(&mut self) -> SkippedRecords {
        SkippedRecords::default()
    }
}

impl Documents {
    fn spec(&self) -> SequenceSpec {
        SequenceSpec { length: self.length, how: self.how }
    }

    fn plan(&self, spec: &DataSpec) -> Result<IngestPlan, Error> {
        let column = |name: &str, dtype| Column { name: name.into(), kind: self.spec().column_kind(dtype) };
        let columns = [column("tokens", Dtype::Int32), column("weights", Dtype::Uint8)];
        let schema = BatchSchema {
            rows: spec.batch_size,
            columns: columns.into_iter().chain(self.spec().describing_columns()).collect(),
            position_bytes: Position::encoded_bytes(spec.lanes) as u32,
            ..BatchSchema::default()
        };
        IngestPlan::feeding(spec, 5, schema, (Arc::new(self.clone()), None))
    }

    /// All tokens, with the number of times that they occur in each epoch.
    fn tokens(&self) -> BTreeMap<i32, u32> {
        let mut tokens = BTreeMap::new();
        for (split, lengths) in (0..).zip(&self.lengths) {
            for (document, &length) in lengths.iter().enumerate() {
                tokens.extend((0..length).map(|place| (token(split, document, place), 1)));
            }
        }
        tokens
    }
}

/// A batch as received by the consumer.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    epoch: u32,
    position: Vec<u8>,
    /// The tokens of each sequence, without padding.
    sequences: Vec<Vec<i32>>,
}

/// Reads a part of a batch, and checks that its columns describe the same sequences.
fn see(batch: BatchRef<'_>, length: usize) -> Seen {
    let ints = |bytes: &[u8]| -> Vec<i32> {
        bytes.chunks_exact(4).map(|bytes| i32::from_ne_bytes(bytes.try_into().unwrap())).collect()
    };
    let [tokens, weights, segments, positions, ends] = [0, 1, 2, 3, 4].map(|column| batch.column(column));
    let [tokens, segments, positions] = [tokens, segments, positions].map(|column| ints(column.values));
    let (offsets, ends) = (ends.offsets.unwrap(), ints(ends.values));
    let mut sequences = Vec::new();
    for row in 0..batch.rows() {
        let places = row * length..(row + 1) * length;
        let ends = &ends[offsets[row] as usize..offsets[row + 1] as usize];
        let used = *ends.last().unwrap() as usize;
        let mut expected = Vec::new();
        for (segment, piece) in (1..).zip(ends.windows(2)) {
            expected.extend((0..piece[1] - piece[0]).map(|place| (segment, place)));
        }
        assert!(ends[0] == 0 && ends.is_sorted() && (1..=length).contains(&used), "{ends:?}");
        expected.resize(length, (0, 0));
        let found = segments[places.clone()].iter().copied().zip(positions[places.clone()].iter().copied());
        assert_eq!(found.collect::<Vec<_>>(), expected);
        let (tokens, weights) = (&tokens[places.clone()], &weights.values[places]);
        for (&token, &of_token) in tokens[..used].iter().zip(weights) {
            assert_eq!(of_token, weight(token));
        }
        // The tokens of a piece are adjacent in their document.
        for piece in ends.windows(2) {
            let piece = &tokens[piece[0] as usize..piece[1] as usize];
            assert!(piece.windows(2).all(|two| two[1] == two[0] + 1), "{piece:?}");
        }
        assert!(tokens[used..].iter().all(|&token| token == PAD));
        assert!(weights[used..].iter().all(|&weight| weight == PAD_WEIGHT));
        sequences.push(tokens[..used].to_vec());
    }
    // Rows that a short batch lacks are padding.
    let rest = batch.rows() * length..;
    assert!(tokens[rest.clone()].iter().all(|&token| token == PAD));
    assert!(weights.values[rest.clone()].iter().all(|&weight| weight == PAD_WEIGHT));
    assert!(segments[rest.clone()].iter().chain(&positions[rest]).all(|&value| value == 0));
    assert!(offsets[batch.rows()..].iter().all(|&offset| offset == offsets[batch.rows()]));
    Seen { epoch: batch.header().epoch, position: batch.position().to_vec(), sequences }
}

/// All global batches of a feed starting at `from`.
fn run_from(plan: &IngestPlan, from: Position, length: u32) -> (Vec<Seen>, Result<IngestReport, Error>) {
    let (rings, hand_offs) = plan.create_rings().unwrap();
    let open = |hand_off: millstream_batch::HandOff| hand_off.open(plan.ring_schema()).unwrap();
    let mut consumers: Vec<Consumer> = hand_offs.into_iter().map(open).collect();
    let ingest = start(plan.clone(), from, rings).unwrap();
    let mut batches = Vec::new();
    loop {
        let mut next = |consumer: &mut Consumer| {
            consumer.next().ok().flatten().map(|leased| see(leased.batch(), length as usize))
        };
        let parts: Vec<Seen> = consumers.iter_mut().filter_map(&mut next).collect();
        let Some(first) = parts.first() else { break };
        assert_eq!(parts.len(), consumers.len());
        assert!(parts.iter().all(|part| part.position == first.position));
        let (epoch, position) = (first.epoch, first.position.clone());
        batches.push(Seen {
            epoch,
            position,
            sequences: parts.into_iter().flat_map(|part| part.sequences).collect(),
        });
    }
    (batches, ingest.join())
}

fn documents() -> impl Strategy<Value = Documents> {
    let lengths = prop_oneof![2 => Just(0_u32), 6 => 0..20_u32, 1 => 20..100_u32];
    let split = prop::collection::vec(lengths, 0..30);
    let how = prop_oneof![Just(Packing::BestFit), Just(Packing::Concatenate)];
    (prop::collection::vec(split, 1..6), 1..24_u32, how, 1..12_usize).prop_map(
        |(lengths, length, how, chunk_rows)| Documents { lengths, length, how, chunk_rows, average: 100 },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn each_token_is_in_one_sequence_of_each_epoch(
        documents in documents(), lanes in 1..5_u32, shuffle_rows in 1..80_u64, batch_size in 1..12_u32,
        ranks in 1..4_u32,
    ) {
        let plan = documents.plan(&spec(lanes, shuffle_rows, batch_size)).unwrap();
        let (batches, report) = run_from(&plan, plan.start(), documents.length);
        let tokens = documents.tokens();
        if tokens.is_empty() {
            prop_assert!(report.unwrap_err().to_string().contains("have no tokens"));
            return Ok(());
        }
        prop_assert_eq!(report.unwrap().stats.batches, batches.len() as u64);
        for epoch in 0..2 {
            let mut found = BTreeMap::new();
            let of_epoch: Vec<_> = batches.iter().filter(|batch| batch.epoch == epoch).collect();
            for token in of_epoch.iter().flat_map(|batch| &batch.sequences).flatten() {
                *found.entry(*token).or_default() += 1;
            }
            prop_assert_eq!(&found, &tokens);
            let (_, full) = of_epoch.split_last().unwrap();
            prop_assert!(full.iter().all(|batch| batch.sequences.len() == batch_size as usize));
        }
        // Neither chunks nor ranks matter.
        let others = Documents { chunk_rows: 1, ..documents.clone() };
        let others = others.plan(&spec(lanes, shuffle_rows, batch_size)).unwrap();
        prop_assert_eq!(&run_from(&others, others.start(), documents.length).0, &batches);
        let dealt = plan.with_ranks(ranks).unwrap();
        prop_assert_eq!(&run_from(&dealt, dealt.start(), documents.length).0, &batches);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn a_feed_resumes_after_any_batch(
        documents in documents(), lanes in 1..5_u32, shuffle_rows in 1..80_u64, batch_size in 1..12_u32,
    ) {
        let plan = documents.plan(&spec(lanes, shuffle_rows, batch_size)).unwrap();
        let (batches, _) = run_from(&plan, plan.start(), documents.length);
        for (done, batch) in batches.iter().enumerate() {
            let (rest, end) = run_from(&plan, plan.resume(&batch.position).unwrap(), documents.length);
            prop_assert_eq!(&rest[..], &batches[done + 1..]);
            end.unwrap();
        }
    }
}

#[test]
fn an_evaluation_keeps_the_order_of_documents() {
    let lengths = vec![vec![3, 4, 0, 2], vec![], vec![9, 1]];
    let documents = Documents { lengths, length: 5, how: Packing::Concatenate, chunk_rows: 2, average: 10 };
    let spec = spec(2, 0, 3);
    let schema = documents.plan(&DataSpec { shuffle_rows: 1, ..spec.clone() }).unwrap().schema().clone();
    let plan = IngestPlan::scoring(&spec, schema, Arc::new(documents.clone())).unwrap();
    let (batches, report) = run_from(&plan, plan.start(), 5);
    report.unwrap();
    let found: Vec<i32> = batches.iter().flat_map(|batch| &batch.sequences).flatten().copied().collect();
    assert_eq!(found, documents.tokens().into_keys().collect::<Vec<_>>());
    let lengths: Vec<usize> = batches.iter().flat_map(|batch| &batch.sequences).map(Vec::len).collect();
    // A sequence has no documents of two files.
    assert_eq!(lengths, [5, 4, 5, 5]);
}

#[test]
fn other_packing_is_another_order() {
    let documents = Documents {
        lengths: vec![vec![3; 50]],
        length: 8,
        how: Packing::BestFit,
        chunk_rows: 9,
        average: 10,
    };
    let spec = spec(1, 20, 2);
    let position = run_from(&documents.plan(&spec).unwrap(), documents.plan(&spec).unwrap().start(), 8);
    let position = &position.0[1].position;
    assert!(documents.plan(&spec).unwrap().resume(position).is_ok());
    for other in
        [Documents { length: 9, ..documents.clone() }, Documents { how: Packing::Concatenate, ..documents }]
    {
        let error = other.plan(&spec).unwrap().resume(position).unwrap_err().to_string();
        assert!(error.contains("the packing"), "{error}");
    }
}

#[test]
fn documents_need_a_pool_and_memory_for_it() {
    let documents = Documents {
        lengths: vec![vec![900; 400]],
        length: 64,
        how: Packing::BestFit,
        chunk_rows: 64,
        average: 10,
    };
    let error = documents.plan(&spec(1, 0, 2)).err().unwrap().to_string();
    assert!(error.contains("set shuffle_rows"), "{error}");
    // Documents are 90 times as long as planned.
    let tight = DataSpec { memory_budget_bytes: 14 << 20, ..spec(1, 400, 2) };
    let plan = documents.plan(&tight).unwrap();
    let (batches, report) = run_from(&plan, plan.start(), 64);
    let error = report.unwrap_err().to_string();
    assert!(
        batches.is_empty() && error.contains("`average` of the columns of tokens to at least "),
        "{error}"
    );
    // What it advises is enough.
    let advised = error.split("at least ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
    let enough = Documents { average: advised.parse().unwrap(), ..documents };
    let error = enough.plan(&tight).err().unwrap();
    assert!(
        matches!(error, Error::OverBudget { .. }) && error.to_string().contains("(`average`)"),
        "{error}"
    );
    let plan = enough.plan(&DataSpec { memory_budget_bytes: 24 << 20, ..tight }).unwrap();
    run_from(&plan, plan.start(), 64).1.unwrap();
}

#[test]
fn the_pieces_of_documents_count_as_memory() {
    let of = |length| Documents {
        lengths: vec![vec![1]],
        length,
        how: Packing::BestFit,
        chunk_rows: 1,
        average: 1000,
    };
    let [short, long] = [1, 1000].map(|length| of(length).sequences().unwrap().planned_bytes());
    assert_eq!(short - long, 999 * crate::order::packing::FULL_BYTES);
    assert!(long > 5000 && of(1 << 22).sequences().unwrap().working_bytes() > 16 << 20);
}

#[test]
fn windows_without_tokens_are_passed_over_in_any_order() {
    // Whole windows are empty.
    let lengths =
        vec![vec![0; 40], [vec![0; 30], vec![7; 20], vec![0; 30]].concat(), vec![5; 10], vec![0; 3]];
    let documents = Documents { lengths, length: 8, how: Packing::BestFit, chunk_rows: 3, average: 10 };
    for deterministic in [true, false] {
        let spec = DataSpec { deterministic, ..spec(3, 15, 2) };
        let plan = documents.plan(&spec).unwrap();
        let (batches, report) = run_from(&plan, plan.start(), 8);
        report.unwrap();
        for epoch in 0..2 {
            let of_epoch = batches.iter().filter(|batch| batch.epoch == epoch);
            let mut found: Vec<i32> =
                of_epoch.flat_map(|batch| &batch.sequences).flatten().copied().collect();
            found.sort_unstable();
            assert_eq!(found, documents.tokens().into_keys().collect::<Vec<_>>());
        }
    }
}
