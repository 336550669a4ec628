//! The verdict on one measured scenario. Pure; the only place that says whether it passes.
//!
//! A figure that is there but is no number fails (`null` and NaN are never zero). The high pass is
//! judged on its collections, retained memory, buffers and counters, as lite-perf-gate does, in that order
//! and in its words; then come the figures that only an observer from outside has: bytes per
//! operation as the slope between the scales, large objects, memory off the heap, leaks as a slope,
//! and what hot() left to allocate later. A hand-made result without these is judged without them,
//! unless a limit on one of them was asked for.

use super::text::{fixed0, number, per_op};
use serde_json::{Map, Value};

/// Limits where the user sets none.
pub const MAX_SCAVENGES: f64 = 2.0;
pub const MAX_RETAINED_KB: f64 = 64.0;
pub const MAX_OLD_GEN: f64 = 0.0;
pub const MAX_ARRAY_BUFFERS_KB: f64 = 64.0;
pub const MAX_BYTES_PER_OP: f64 = 0.0;
pub const MAX_LARGE_BYTES: f64 = 0.0;
pub const MAX_EXTERNAL_KB: f64 = 64.0;
pub const MAX_RETAINED_BYTES_PER_OP: f64 = 0.0;
pub const MAX_DEFERRED_BYTES_PER_OP: f64 = 0.0;

/// A figure of a result.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Figure {
    Absent,
    /// Not measured, or not a number.
    NotANumber,
    Number(f64),
}

impl Figure {
    #[must_use]
    pub fn of(value: Option<&Value>) -> Self {
        match value {
            None => Self::Absent,
            Some(Value::Number(n)) => n.as_f64().map_or(Self::NotANumber, Self::Number),
            // What JSON cannot carry; see the protocol.
            Some(Value::Object(o)) => match o.get("$n").and_then(Value::as_str) {
                Some("Infinity") => Self::Number(f64::INFINITY),
                Some("-Infinity") => Self::Number(f64::NEG_INFINITY),
                _ => Self::NotANumber,
            },
            Some(_) => Self::NotANumber,
        }
    }

    #[must_use]
    pub const fn number(self) -> Option<f64> {
        match self {
            Self::Number(x) => Some(x),
            Self::Absent | Self::NotANumber => None,
        }
    }
}

/// What a reason is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Something was allocated, collected or kept.
    Allocation,
    /// One of the scenario's own counters.
    Counter,
    /// A figure is missing.
    Unmeasured,
    /// The detector cannot vouch for it.
    Doubt,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    pub kind: Kind,
    pub text: String,
}

/// Why a scenario does not pass; nothing: it passes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScenarioVerdict {
    pub reasons: Vec<Reason>,
}

impl ScenarioVerdict {
    #[must_use]
    pub fn pass(&self) -> bool {
        self.reasons.is_empty()
    }

    /// It fails for what it allocates, not for how it was set up.
    #[must_use]
    pub fn caught(&self) -> bool {
        self.reasons.iter().any(|r| r.kind == Kind::Allocation)
    }

    /// Something about it could not be measured or trusted.
    #[must_use]
    pub fn doubted(&self) -> bool {
        self.reasons.iter().any(|r| r.kind == Kind::Doubt)
    }

    #[must_use]
    pub fn texts(&self) -> Vec<&str> {
        self.reasons.iter().map(|r| r.text.as_str()).collect()
    }

    fn add(&mut self, kind: Kind, text: String) {
        self.reasons.push(Reason { kind, text });
    }

    fn closed(&mut self, lane: &str) {
        self.add(
            Kind::Unmeasured,
            format!("{lane}: not a number (fail closed)"),
        );
    }

    fn hold(&mut self, lane: &str, figure: Figure, max: f64, say: impl Fn(f64) -> String) {
        match figure {
            Figure::Number(x) if x > max => self.add(Kind::Allocation, say(x)),
            Figure::Number(_) => {}
            Figure::Absent | Figure::NotANumber => self.closed(lane),
        }
    }
}

/// Holds a result against limits, both as JavaScript sends them.
#[must_use]
pub fn verdict_of_json(result: &Value, thresholds: &Value) -> ScenarioVerdict {
    let mut verdict = ScenarioVerdict::default();
    let figure = |name: &str| Figure::of(result.get(name));
    let given = |name: &str| Figure::of(thresholds.get(name)).number();
    let limit = |name: &str, default: f64| given(name).unwrap_or(default);
    let reliable = result.get("retainedReliable") != Some(&Value::Bool(false));

    let max = limit("maxScavenges", MAX_SCAVENGES);
    verdict.hold("scavenges", figure("minorHi"), max, |x| {
        format!(
            "scavenges: {} > {} (transient allocation)",
            number(x),
            number(max)
        )
    });
    if reliable {
        let max = limit("maxRetainedKB", MAX_RETAINED_KB);
        verdict.hold("retained", figure("retainedKB_hi"), max, |x| {
            format!("retained: {}KB > {}KB", fixed0(x), number(max))
        });
    }
    let old_gen = figure("oldGenHi");
    if old_gen != Figure::Absent {
        let max = limit("maxOldGen", MAX_OLD_GEN);
        verdict.hold("oldgen", old_gen, max, |x| {
            format!(
                "oldgen: {} > {} (old-gen GC activity -- diagnose with @zakkster/lite-gc-profiler)",
                number(x),
                number(max)
            )
        });
    }
    let buffers = figure("arrayBuffersKB_hi");
    if buffers != Figure::Absent && reliable {
        let max = limit("maxArrayBuffersKB", MAX_ARRAY_BUFFERS_KB);
        verdict.hold("arrayBuffers", buffers, max, |x| {
            format!(
                "arrayBuffers: {}KB > {}KB (external memory -- diagnose with @zakkster/lite-gc-profiler)",
                fixed0(x),
                number(max)
            )
        });
    }
    if let Some(limits) = thresholds.get("counters").and_then(Value::as_object) {
        counters(&mut verdict, limits, result.get("counters_hi"));
    }
    ours(&mut verdict, result, thresholds);
    for why in result
        .get("doubts")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
    {
        let why = why.as_str().unwrap_or("for an unknown reason");
        verdict.add(Kind::Doubt, format!("cannot vouch: {why}"));
    }
    verdict
}

/// Lanes that lite-perf-gate does not have.
fn ours(verdict: &mut ScenarioVerdict, result: &Value, thresholds: &Value) {
    let mut lane = |lane: &str,
                    field: &str,
                    option: &str,
                    default: Option<f64>,
                    say: &dyn Fn(f64, f64) -> String| {
        let figure = Figure::of(result.get(field));
        let given = Figure::of(thresholds.get(option)).number();
        if figure == Figure::Absent && given.is_none() {
            return;
        }
        if let Some(max) = given.or(default) {
            verdict.hold(lane, figure, max, |x| say(x, max));
        }
    };
    let workers = Figure::of(result.get("workersBytesPerOp"))
        .number()
        .filter(|x| *x > 0.0);
    lane(
        "bytes",
        "bytesPerOp",
        "maxBytesPerOp",
        Some(MAX_BYTES_PER_OP),
        &|x, max| {
            let of = workers.map_or(String::new(), |w| {
                format!(", {} B/op of them in worker isolates", per_op(w))
            });
            format!(
                "bytes: {} B/op > {} B/op (allocation{of})",
                per_op(x),
                number(max)
            )
        },
    );
    lane("fixed", "bytesFixed", "maxBytesFixed", None, &|x, max| {
        format!("fixed: {}B > {}B a call", fixed0(x), number(max))
    });
    lane(
        "large",
        "largeBytesHi",
        "maxLargeBytes",
        Some(MAX_LARGE_BYTES),
        &|x, max| format!("large: {}B > {}B (large objects)", number(x), number(max)),
    );
    lane(
        "external",
        "externalKB_hi",
        "maxExternalKB",
        Some(MAX_EXTERNAL_KB),
        &|x, max| {
            format!(
                "external: {}KB > {}KB (allocated off the heap)",
                fixed0(x),
                number(max)
            )
        },
    );
    lane(
        "retained",
        "retainedBytesPerOp",
        "maxRetainedBytesPerOp",
        Some(MAX_RETAINED_BYTES_PER_OP),
        &|x, max| format!("retained: {} B/op > {} B/op (leak)", per_op(x), number(max)),
    );
    lane(
        "deferred",
        "deferredBytesPerOp",
        "maxDeferredBytesPerOp",
        Some(MAX_DEFERRED_BYTES_PER_OP),
        &|x, max| {
            format!(
                "deferred: {} B/op > {} B/op (allocated after hot() returned)",
                per_op(x),
                number(max)
            )
        },
    );
}

fn counters(verdict: &mut ScenarioVerdict, limits: &Map<String, Value>, found: Option<&Value>) {
    let Some(found) = found.and_then(Value::as_object) else {
        let keys: Vec<&str> = limits.keys().map(String::as_str).collect();
        verdict.add(
            Kind::Unmeasured,
            format!(
                "counters: thresholds set ({}) but the scenario measured no counters -- add statsOf (fail closed)",
                keys.join(", ")
            ),
        );
        return;
    };
    for (key, max) in limits {
        let Some(value) = found.get(key) else {
            let keys: Vec<&str> = found.keys().map(String::as_str).collect();
            let keys = if keys.is_empty() {
                "none".to_owned()
            } else {
                keys.join(", ")
            };
            verdict.add(
                Kind::Unmeasured,
                format!("{key}: no such counter measured (statsOf keys: {keys})"),
            );
            continue;
        };
        let max = Figure::of(Some(max)).number().unwrap_or(0.0);
        match Figure::of(Some(value)).number().filter(|x| x.is_finite()) {
            None => verdict.closed(key),
            Some(x) if x > max => verdict.add(
                Kind::Counter,
                format!("{key}: {} > {}", number(x), number(max)),
            ),
            Some(_) => {}
        }
    }
}

/// A result on two lines, as `formatResult` gives it.
///
/// # Errors
/// A sentence, when the result has no name or no retained figure.
pub fn format_result(result: &Value) -> Result<String, String> {
    let figure = |name: &str| Figure::of(result.get(name));
    let shown = |name: &str| match figure(name) {
        Figure::Number(x) => number(x),
        Figure::NotANumber => "NaN".to_owned(),
        Figure::Absent => "undefined".to_owned(),
    };
    let name = result
        .get("name")
        .and_then(Value::as_str)
        .ok_or("formatResult: the result has no name")?;
    let retained = match figure("retainedKB_hi") {
        Figure::Number(x) => fixed0(x),
        Figure::NotANumber => "NaN".to_owned(),
        Figure::Absent => return Err("formatResult: the result has no retainedKB_hi".into()),
    };
    let k = shown("k");
    let mut text = format!(
        "{name}\n    scavenges  N:{:>3}  {k}N:{:>3}   retained {retained}KB",
        shown("minorLo"),
        shown("minorHi"),
    );
    if let Figure::Number(x) = figure("oldGenHi")
        && x > 0.0
    {
        text += &format!("   oldgen {}", number(x));
    }
    if let Figure::Number(x) = figure("arrayBuffersKB_hi")
        && x > 0.5
    {
        text += &format!("   arrayBuffers {}KB", fixed0(x));
    }
    if let Some(counters) = result.get("counters_hi").and_then(Value::as_object) {
        for (key, value) in counters {
            let value = Figure::of(Some(value))
                .number()
                .map_or("NaN".into(), number);
            text += &format!("   {key} Δ{value:>6}");
        }
    }
    match figure("bytesPerOp") {
        Figure::Number(x) => text += &format!("   {} B/op", per_op(x)),
        Figure::NotANumber => text += "   NaN B/op",
        Figure::Absent => {}
    }
    if result.get("source").and_then(Value::as_str) == Some("in-process") {
        text += "   (in-process, not from outside)";
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
