//! Proof that the probes of a binary see what they claim to.
//!
//! A symbol that exists may be inlined and never fire; an argument may lie elsewhere in the next
//! build. So no lane is trusted on the table's word: before the first use of a binary a short control
//! ([`control.cjs`](../../../../src/observe/proof/control.cjs)) runs on that very binary under the
//! very same probes, does known things, and every lane must read the known truth. The outcome is kept
//! under everything it depends on: the binary's build id, the kernel, perf-gate and its object.

mod run;
mod store;
mod truth;

use super::attach::Targets;
use crate::{
    model::Lane,
    target::{Identity, Inherited},
    v8::plan::Plan,
};
use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

/// What a control found about the lanes of one binary. A lane that is not listed has no proof.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Proof {
    /// `Ok`: read its known truth. `Err`: why not.
    pub lanes: BTreeMap<Lane, Result<(), String>>,
}

/// When to run the control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// When no proof is at hand.
    Needed,
    /// Always.
    Always,
    /// Never: without a proof at hand, lanes stay unproven.
    Never,
}

/// Proves binaries, or says why it does not.
pub struct Prover {
    mode: Mode,
    /// Where proofs are kept; `None`: nowhere.
    dir: Option<PathBuf>,
    identity: Identity,
    inherited: Arc<Inherited>,
}

impl Prover {
    #[must_use]
    pub const fn new(
        mode: Mode,
        dir: Option<PathBuf>,
        identity: Identity,
        inherited: Arc<Inherited>,
    ) -> Self {
        Self {
            mode,
            dir,
            identity,
            inherited,
        }
    }

    /// The proof of the binary that the stopped process `pid` runs; `targets` is where
    /// its probes go.
    pub fn proof(&mut self, pid: u32, targets: &Targets<'_>, plan: &Plan) -> Proof {
        let key = store::key(plan);
        if self.mode != Mode::Always
            && let (Some(dir), Some(key)) = (&self.dir, &key)
            && let Some(proof) = store::load(dir, key)
        {
            return proof;
        }
        if self.mode == Mode::Never {
            return all(plan, "no proof at hand, and --no-prove forbids the control");
        }
        log::info!("proving the probes of {}", plan.source.display());
        let proof = match run::control(pid, targets, plan, &self.identity, &self.inherited) {
            Ok(outcomes) => fold(plan, outcomes),
            Err(why) => all(plan, &format!("the control could not run: {why}")),
        };
        let sound = Lane::ALL
            .into_iter()
            .filter(|l| plan.blind_in(*l).is_none())
            .all(|l| matches!(proof.lanes.get(&l), Some(Ok(()))));
        // A failure may be a passing one: it is looked into again next time.
        if sound && let (Some(dir), Some(key)) = (&self.dir, &key) {
            store::save(dir, key, &proof);
        }
        proof
    }
}

fn all(plan: &Plan, why: &str) -> Proof {
    let lanes = Lane::ALL
        .into_iter()
        .map(|lane| (lane, Err(plan.blind_in(lane).unwrap_or(why).to_owned())))
        .collect();
    Proof { lanes }
}

/// Every outcome of a lane must be good, and there must be one.
fn fold(plan: &Plan, outcomes: Vec<truth::Outcome>) -> Proof {
    let mut lanes: BTreeMap<Lane, Result<(), String>> = BTreeMap::new();
    for (lane, outcome) in outcomes {
        let so_far = lanes.entry(lane).or_insert(Ok(()));
        if so_far.is_ok() {
            *so_far = outcome;
        }
    }
    for lane in Lane::ALL {
        if let Some(why) = plan.blind_in(lane) {
            lanes.insert(lane, Err(why.to_owned()));
        }
        lanes
            .entry(lane)
            .or_insert_with(|| Err("the control did not get to it".into()));
    }
    Proof { lanes }
}
