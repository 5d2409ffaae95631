//! Scaling of learning rates with the batch size.

use serde::{Deserialize, Serialize};

use super::ModelSpec;

/// The batch size for which learning rates are stated, and the scaling rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BatchScaling {
    /// The batch size for which they are stated.
    pub reference: u32,
    /// The scaling rule.
    pub rule: RateRule,
}

/// How a learning rate scales with the batch size `B`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RateRule {
    /// Proportional to `B`: a step with k times the rows moves as far as k steps. Goyal et al., "Accurate,
    /// Large Minibatch SGD: Training ImageNet in 1 Hour", 2017, who use a warm-up; for plain and momentum
    /// SGD.
    Linear,
    /// Proportional to the square root of `B`, like the standard deviation of a step. Krizhevsky, "One weird
    /// trick for parallelizing convolutional neural networks", 2014; for optimizers that normalize by the
    /// size of gradients, derived by Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient
    /// Algorithms", 2022.
    Sqrt,
    /// Constant.
    None,
}

impl RateRule {
    /// All rules, with their names in a job file.
    pub const ALL: [(&'static str, Self); 3] =
        [("linear", Self::Linear), ("sqrt", Self::Sqrt), ("none", Self::None)];

    /// Its name in a job file.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, rule)| *rule == self).map_or("", |(name, _)| name)
    }
}

impl BatchScaling {
    /// The factor of learning rates for batches of `rows` rows.
    pub fn factor(self, rows: u32) -> f64 {
        let ratio = f64::from(rows) / f64::from(self.reference);
        match self.rule {
            RateRule::Linear => ratio,
            RateRule::Sqrt => ratio.sqrt(),
            RateRule::None => 1.0,
        }
    }

    /// Multiplies all learning rates of `model` for batches of `rows` rows. Each is rounded once.
    pub fn apply(self, model: &mut ModelSpec, rows: u32) {
        let factor = self.factor(rows);
        for optimizer in model.optimizers_mut() {
            let (rate, _) = optimizer.common_mut();
            *rate = (f64::from(*rate) * factor) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{AdamSpec, LinearSpec, MlpSpec, OptimizerSpec, TwoTowerSpec};
    use super::*;

    #[test]
    fn each_rule_follows_its_paper() {
        let factor = |rule, rows| BatchScaling { reference: 256, rule }.factor(rows);
        assert_eq!(
            [RateRule::Linear, RateRule::Sqrt, RateRule::None].map(|it| factor(it, 4096)),
            [16.0, 4.0, 1.0]
        );
        assert_eq!(
            [RateRule::Linear, RateRule::Sqrt, RateRule::None].map(|it| factor(it, 64)),
            [0.25, 0.5, 1.0]
        );
        assert_eq!(factor(RateRule::Sqrt, 512), 2.0_f64.sqrt());
        assert!(RateRule::ALL.iter().all(|&(name, rule)| rule.name() == name));
    }

    #[test]
    fn powers_of_two_give_exact_rates() {
        let optimizer = OptimizerSpec::Sgd { learning_rate: 0.05, l2: 0.5 };
        let mut model = ModelSpec::Linear(LinearSpec { features: vec![], optimizer });
        BatchScaling { reference: 256, rule: RateRule::Sqrt }.apply(&mut model, 4096);
        let wanted = OptimizerSpec::Sgd { learning_rate: 0.2, l2: 0.5 };
        assert_eq!(model, ModelSpec::Linear(LinearSpec { features: vec![], optimizer: wanted }));
    }

    #[test]
    fn every_learning_rate_is_scaled_once() {
        let optimizers = [
            OptimizerSpec::Sgd { learning_rate: 1.0, l2: 0.0 },
            OptimizerSpec::Momentum { learning_rate: 1.0, momentum: 0.9, nesterov: false, l2: 0.0 },
            OptimizerSpec::Adagrad { learning_rate: 1.0, initial_accumulator: 0.1, epsilon: 1e-7, l2: 0.0 },
            OptimizerSpec::RowWiseAdagrad {
                learning_rate: 1.0,
                initial_accumulator: 0.1,
                epsilon: 1e-7,
                l2: 0.0,
            },
            OptimizerSpec::Adam(AdamSpec {
                learning_rate: 1.0,
                beta1: 0.9,
                beta2: 0.999,
                epsilon: 1e-7,
                l2: 0.0,
            }),
            OptimizerSpec::AdamW {
                adam: AdamSpec { learning_rate: 1.0, beta1: 0.9, beta2: 0.999, epsilon: 1e-7, l2: 0.0 },
                weight_decay: 0.5,
            },
            OptimizerSpec::Ftrl { learning_rate: 1.0, beta: 0.0, l1: 0.0, l2: 0.0, initial_accumulator: 0.1 },
        ];
        for optimizer in optimizers {
            let embedding = serde_json::json!({"dim": 4, "pooling": "sum", "optimizer": optimizer});
            let tower = serde_json::json!({
                "features": [], "embedding": embedding, "hidden": [8], "optimizer": optimizer
            });
            let tower: MlpSpec = serde_json::from_value(tower).expect("a specification");
            let (query, item, temperature) = (tower.clone(), tower, 1.0);
            let mut model = ModelSpec::TwoTower(TwoTowerSpec {
                query,
                item,
                dim: 8,
                normalize: true,
                temperature,
                loss: Default::default(),
                item_id: None,
            });
            BatchScaling { reference: 100, rule: RateRule::Linear }.apply(&mut model, 300);
            let rates: Vec<f32> =
                model.optimizers_mut().into_iter().map(|optimizer| optimizer.common().0).collect();
            assert_eq!(rates, [3.0; 4], "{optimizer:?}");
        }
    }
}
