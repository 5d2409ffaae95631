//! Draws a lineage as SVG: a box per run, the earliest on top, and an arrow from each run to one that came from it.

use std::collections::BTreeMap;

use millstream_daemon::lineage::{Origin, RunLineage};
use millstream_io::storage::Directory;

use super::{facts, heading, verb};
use crate::plot::{ADVANCE, CURVES, INK, LABEL, Picture};

const LINE: f64 = 18.0;
const PADDING: f64 = 12.0;
const GAP: f64 = 18.0;
const MARGIN: f64 = 20.0;
/// The colours of a box and of its edge.
const FILL: &str = "#f6f8fb";
const EDGE: &str = CURVES[0];
/// The distance between two arrows beside the boxes.
const LANE: f64 = 12.0;
/// Where an arrow leaves a box below its upper edge, and where it reaches one.
const LEAVES: f64 = 24.0;
const REACHES: f64 = 12.0;

struct Node {
    heading: String,
    lines: Vec<String>,
    /// The nodes that it came from.
    origins: Vec<usize>,
}

/// An SVG document that shows `run` below the runs before it.
pub(super) fn svg(run: &RunLineage) -> String {
    let mut nodes = Vec::new();
    collect(run, &mut nodes, &mut BTreeMap::new());
    let lanes = nodes.iter().map(|node| node.origins.len()).sum::<usize>();
    let left = MARGIN + (lanes + 1) as f64 * LANE;
    let longest = nodes.iter().flat_map(|node| &node.lines).map(|line| line.chars().count()).max();
    let width = longest.unwrap_or(0) as f64 * LABEL * ADVANCE + 2.0 * PADDING;
    let tops: Vec<f64> = nodes
        .iter()
        .scan(MARGIN, |top, node| {
            let here = *top;
            *top += node.height() + GAP;
            Some(here)
        })
        .collect();
    let height = nodes.iter().map(|node| node.height() + GAP).sum::<f64>() - GAP + 2.0 * MARGIN;
    let mut picture = Picture::new(left + width + MARGIN, height);
    let mut lane = left;
    for (node, &top) in nodes.iter().zip(&tops) {
        node.draw(&mut picture, [left, top], width);
        for &origin in &node.origins {
            lane -= LANE;
            arrow(&mut picture, lane, left, [tops[origin] + LEAVES, top + REACHES]);
        }
    }
    picture.finish()
}

/// Adds the runs before `run`, then `run`; returns its place. `known` has the places of origins by their path: two runs may
/// have the same one.
fn collect<'a>(
    run: &'a RunLineage,
    nodes: &mut Vec<Node>,
    known: &mut BTreeMap<&'a Directory, usize>,
) -> usize {
    let mut lines: Vec<String> =
        facts(run).into_iter().map(|(title, value)| format!("{title:<10}  {value}")).collect();
    let mut origins = Vec::new();
    for Origin { relation, path, run, problem } in &run.origins {
        let place = match (run, known.get(path)) {
            (Some(run), _) => collect(run, nodes, known),
            (None, Some(&place)) => place,
            (None, None) => {
                let lines = vec![path.to_string(), problem.clone().unwrap_or_default()];
                nodes.push(Node {
                    heading: path.name().unwrap_or_default().to_owned(),
                    lines,
                    origins: Vec::new(),
                });
                nodes.len() - 1
            }
        };
        known.insert(path, place);
        lines.push(format!("{} {}", verb(*relation), nodes[place].heading));
        origins.push(place);
    }
    nodes.push(Node { heading: heading(run), lines, origins });
    nodes.len() - 1
}

impl Node {
    fn height(&self) -> f64 {
        (self.lines.len() + 1) as f64 * LINE + 2.0 * PADDING
    }

    fn draw(&self, picture: &mut Picture, [left, top]: [f64; 2], width: f64) {
        picture.rectangle([left, top], [width, self.height()], FILL, EDGE);
        let x = left + PADDING;
        let mut y = top + PADDING + 12.0;
        picture.text([x, y], "start", LABEL, EDGE, &self.heading);
        for line in &self.lines {
            y += LINE;
            picture.text([x, y], "start", LABEL, INK, line);
        }
    }
}

/// An arrow beside the boxes, at `lane`.
fn arrow(picture: &mut Picture, lane: f64, left: f64, [from, to]: [f64; 2]) {
    picture.stroke(&[[left, from], [lane, from], [lane, to], [left, to]], 1.0, EDGE);
    picture.stroke(&[[left - 7.0, to - 4.0], [left, to], [left - 7.0, to + 4.0]], 1.0, EDGE);
}

#[cfg(test)]
mod tests {
    use millstream_daemon::lineage::{JobLineage, Relation};

    use millstream_io::storage::Directory;

    use super::*;

    fn run(id: &str, origins: Vec<Origin>) -> RunLineage {
        let job = JobLineage {
            name: "a<b".into(),
            seed: 1,
            fingerprint: "f".repeat(64),
            features_fingerprint: "e".repeat(64),
            features: 2,
        };
        let directory = Directory::local(format!("/runs/{id}"));
        RunLineage { id: id.into(), directory, checkpoint: None, job, train: None, eval: None, origins }
    }

    #[test]
    fn each_run_has_a_box_and_each_origin_an_arrow() {
        let known = |relation, id| Origin {
            relation,
            path: Directory::local(format!("/runs/{id}")),
            run: Some(run(id, Vec::new())),
            problem: None,
        };
        let gone = Origin {
            relation: Relation::Repeats,
            path: Directory::local("/runs/gone&lost"),
            run: None,
            problem: Some("no run".into()),
        };
        let drawn = svg(&run("last", vec![known(Relation::Continues, "first"), gone]));
        assert_eq!(drawn.matches("<rect x=").count(), 3);
        assert_eq!(drawn.matches("<path ").count(), 2 * 2, "each has a line and a head");
        for wanted in [
            "continues first, without a checkpoint",
            "repeats gone&amp;lost",
            "no run",
            "ffffffffffff, seed 1",
        ] {
            assert!(drawn.contains(wanted), "{wanted}: {drawn}");
        }
    }
}
