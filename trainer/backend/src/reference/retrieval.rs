//! Unit vectors, dot products of rows, and the losses of queries that choose among the items of a batch.

use super::losses::{sigmoid, softplus};
use super::{Reference, ReferenceMatrix};
use crate::ops::{Choice, InBatchInput, InBatchLoss, MIN_SQUARE, RowProducts, UnitBackward, UnitForward};

impl Reference {
    pub(super) fn unit_forward(&self, operation: UnitForward<'_, Self>) {
        let UnitForward { rows, input, output } = operation;
        output.set(rows, |row, column| {
            input.at(row, column) / dot((input, row), (input, row)).max(MIN_SQUARE).sqrt()
        });
    }

    pub(super) fn unit_backward(&self, operation: UnitBackward<'_, Self>) {
        let UnitBackward { rows, input, grad: gradient } = operation;
        for row in 0..rows {
            let square = dot((input, row), (input, row));
            let length = square.max(MIN_SQUARE).sqrt();
            // The component along the vector changes only its length, so it is removed. Short vectors are only scaled.
            let along = if square > MIN_SQUARE { dot((input, row), (gradient, row)) / square } else { 0.0 };
            for column in 0..input.columns {
                let across = gradient.at(row, column) - along * input.at(row, column);
                *gradient.at_mut(row, column) = across / length;
            }
        }
        gradient.round(rows);
    }

    pub(super) fn row_products(&self, operation: RowProducts<'_, Self>) {
        let RowProducts { rows, factor, left, right, out } = operation;
        out.set(rows, |row, _| factor * dot((left, row), (right, row)));
    }

    pub(super) fn in_batch_loss(&self, operation: InBatchLoss<'_, Self>) {
        let InBatchLoss { input, query_grad, item_grad, sums, .. } = operation;
        let InBatchInput { batch, rows: own, queries, items, temperature, choice, item_id } = input;
        let (rows, width) = (batch.rows(), queries.columns);
        let id = |row: usize| item_id.map(|feature| batch.single_ids(feature)[row]);
        let is_rival = |i: usize, j: usize| i == j || id(i).is_none() || id(i) != id(j);
        let weight = |row: usize| f64::from(batch.labels(0)[row]) * f64::from(batch.weights()[row]);
        let weight_of_all: f64 = (0..rows).map(weight).sum();
        query_grad.values[..own.len() * width].fill(0.0);
        item_grad.values[..rows * width].fill(0.0);
        for i in own.clone().filter(|&row| weight(row) != 0.0) {
            let query = i - own.start;
            let score = |j: usize| dot((queries, query), (items, j)) / temperature;
            let rivals: Vec<usize> = (0..rows).filter(|&j| is_rival(i, j)).collect();
            let mut add = |j: usize, by_score: f64| {
                let by_score = by_score * weight(i) / weight_of_all;
                for k in 0..width {
                    *query_grad.at_mut(query, k) += by_score / temperature * items.at(j, k);
                    *item_grad.at_mut(j, k) += by_score / temperature * queries.at(query, k);
                }
            };
            if *choice == Choice::Pairwise {
                let others = (rivals.len() - 1) as f64;
                for &j in rivals.iter().filter(|&&j| j != i) {
                    let distance = score(j) - score(i);
                    *sums.at_mut(0, 0) += weight(i) * softplus(distance) / others;
                    add(j, sigmoid(distance) / others);
                    add(i, -sigmoid(distance) / others);
                }
                continue;
            }
            let largest = rivals.iter().fold(f64::NEG_INFINITY, |largest, &j| largest.max(score(j)));
            let total: f64 = rivals.iter().map(|&j| (score(j) - largest).exp()).sum();
            *sums.at_mut(0, 0) += weight(i) * (total.ln() + largest - score(i));
            for &j in &rivals {
                let probability = (score(j) - largest).exp() / total;
                add(j, probability - f64::from(u8::from(i == j)));
            }
        }
        *sums.at_mut(0, 1) += own.clone().map(weight).sum::<f64>();
        query_grad.round(own.len());
        item_grad.round(rows);
    }
}

/// The dot product of row `i` of `left` and row `j` of `right`.
fn dot((left, i): (&ReferenceMatrix, usize), (right, j): (&ReferenceMatrix, usize)) -> f64 {
    (0..left.columns).map(|k| left.at(i, k) * right.at(j, k)).sum()
}
