//! The protocol between the JavaScript side and perf-gate, version [`VERSION`].
//!
//! A program that wants to be measured finds the marker file's folder in `PERF_GATE_MARK`. In it lies
//! the pipe `ask`: one JSON object a line, each with the asking isolate's `token`. An isolate first
//! marks itself with its token (a marker of kind 3), then says `hello`, then opens the pipe
//! `answer-TOKEN`, which appears in the same folder, and from then on reads one line for each question.
//! A question of more than [`ATOMIC`] bytes is put into the file `question-TOKEN` and only announced.
//! All of it is synchronous on the JavaScript side, and none of it happens inside a window.
//!
//! Numbers that JSON cannot carry travel as `{"$n": "NaN"}`, also `Infinity` and `-Infinity`.

use super::outcome::Win;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

pub const VERSION: u32 = 1;
/// What a pipe takes in one piece (`PIPE_BUF` of Linux, include/uapi/linux/limits.h).
pub const ATOMIC: usize = 4096;

/// A question.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
pub enum Ask {
    Hello {
        v: u32,
    },
    /// The question is in the file.
    Long {},
    /// What this process is to do (`perf-gate gate` only).
    Task {},
    /// A module's scenarios, in order (`perf-gate gate` only).
    Listing {
        scenarios: Vec<Listed>,
        thresholds: Option<Value>,
    },
    Begin(Box<Begin>),
    Step(Box<Shown>),
    Failed {
        stage: String,
        error: String,
        torn: bool,
    },
    /// `verdict(result, thresholds)`.
    Verdict {
        result: Value,
        thresholds: Value,
        /// Only whether it fails for an allocation (mustFail).
        #[serde(default)]
        caught: bool,
    },
    /// `formatResult(result)`.
    Format {
        result: Value,
    },
    /// Whether the controls read their truth.
    Detector {
        controls: Map<String, Value>,
        #[serde(rename = "maxScavenges")]
        max_scavenges: Option<f64>,
        /// Controls that the user replaced.
        overridden: Vec<String>,
    },
    /// What went wrong in the harness itself (`perf-gate gate` only).
    Trouble {
        what: String,
        error: String,
    },
}

#[derive(Debug, Deserialize)]
pub struct Question {
    pub token: u64,
    #[serde(flatten)]
    pub ask: Ask,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Listed {
    pub name: String,
    #[serde(default)]
    pub must_fail: bool,
}

/// What is to be measured.
#[derive(Clone, Debug, Deserialize)]
pub struct Begin {
    #[serde(flatten)]
    pub spec: Spec,
    /// The control that this is, if it is one.
    pub control: Option<String>,
    #[serde(default, rename = "mustFail")]
    pub must_fail: bool,
    /// Limits that go with it (`perf-gate gate` only).
    #[serde(default)]
    pub thresholds: Value,
}

#[derive(Clone, Debug, Deserialize)]
pub struct Spec {
    pub name: String,
    #[serde(rename = "N")]
    pub n: u64,
    pub k: u64,
    /// Milliseconds that work left behind by hot() is looked at.
    #[serde(rename = "flushMs")]
    pub flush_ms: u64,
    /// The least number of windows of each scale; without it, what the readings ask for.
    #[serde(default)]
    pub repeat: Option<u64>,
    /// Bytes per operation that it is known or hoped to allocate: it is measured again where it reads
    /// another. `null`: nothing is known.
    #[serde(default = "nothing")]
    pub expected: Option<f64>,
    /// Whether what stays alive is measured.
    #[serde(default = "yes")]
    pub retains: bool,
}

const fn nothing() -> Option<f64> {
    Some(0.0)
}

const fn yes() -> bool {
    true
}

/// What JavaScript itself can tell about the last step.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Shown {
    /// Timers and other things that keep the event loop alive.
    pub resources: Option<u64>,
    /// Growth of the scenario's own counters over the window.
    pub counters: Option<Map<String, Value>>,
    /// `hot` returned a promise.
    pub is_async: bool,
}

/// Everything known after a step.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub windows: Vec<Win>,
    pub live_bytes: i64,
    pub external_live_bytes: i64,
    pub lost: u64,
    pub resources: Option<u64>,
    pub counters: Option<Map<String, Value>>,
    pub is_async: bool,
    pub doubts: Vec<String>,
}

/// What JavaScript is to do next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "do", rename_all = "camelCase")]
pub enum Step {
    /// `state = setup()`.
    Setup,
    /// `hot(state, n)` in a window of its own, `times` times.
    Call {
        id: u64,
        n: u64,
        times: u64,
        stats: bool,
    },
    /// `hot(state, n)` outside of any window.
    Bare { n: u64 },
    /// Collect everything, `times` times, and have V8 sum up what lives.
    Settle { times: u64 },
    /// In a window: let the event loop turn, for `ms` at least, and until no more than
    /// `untilResources` keep it alive, `withinMs` at most.
    #[serde(rename_all = "camelCase")]
    Flush {
        id: u64,
        ms: u64,
        until_resources: Option<u64>,
        within_ms: u64,
    },
    /// Outside of any window.
    Sleep { ms: u64 },
    /// `teardown(state)`.
    Teardown,
    /// The result is with this answer.
    Done,
    /// A hook threw; there is no result.
    Failed,
}
