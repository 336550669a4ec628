#![expect(
    clippy::needless_pass_by_value,
    reason = "json!() at the place of the call reads best"
)]

use super::*;
use serde_json::json;

fn reasons(result: Value, limits: Value) -> Vec<String> {
    let verdict = verdict_of_json(&result, &limits);
    assert_eq!(verdict.pass(), verdict.texts().is_empty());
    verdict.texts().into_iter().map(str::to_owned).collect()
}

fn clean() -> Value {
    json!({
        "name": "s", "N": 200_000, "k": 8,
        "minorLo": 0, "minorHi": 0, "majorLo": 0, "majorHi": 0, "oldGenLo": 0, "oldGenHi": 0,
        "retainedKB_lo": 0, "retainedKB_hi": 0, "arrayBuffersKB_lo": 0, "arrayBuffersKB_hi": 0,
        "counters_lo": null, "counters_hi": null, "retainedReliable": true,
    })
}

fn with(fields: Value) -> Value {
    let mut result = clean();
    for (key, value) in fields.as_object().unwrap() {
        result[key] = value.clone();
    }
    result
}

#[test]
fn one_reason_a_lane_in_order() {
    let result = with(json!({
        "minorHi": 9, "retainedKB_hi": 100.4, "oldGenHi": 1, "arrayBuffersKB_hi": 832,
        "counters_hi": { "grown": 3 },
    }));
    assert_eq!(
        reasons(result, json!({ "counters": { "grown": 0 } })),
        [
            "scavenges: 9 > 2 (transient allocation)",
            "retained: 100KB > 64KB",
            "oldgen: 1 > 0 (old-gen GC activity -- diagnose with @zakkster/lite-gc-profiler)",
            "arrayBuffers: 832KB > 64KB (external memory -- diagnose with @zakkster/lite-gc-profiler)",
            "grown: 3 > 0",
        ]
    );
}

#[test]
fn what_is_no_number_is_not_nothing() {
    for bad in [
        json!(null),
        json!("0"),
        json!({"$n": "NaN"}),
        json!([]),
        json!(true),
    ] {
        for (field, lane) in [
            ("minorHi", "scavenges"),
            ("retainedKB_hi", "retained"),
            ("oldGenHi", "oldgen"),
            ("arrayBuffersKB_hi", "arrayBuffers"),
            ("bytesPerOp", "bytes"),
            ("largeBytesHi", "large"),
            ("externalKB_hi", "external"),
            ("retainedBytesPerOp", "retained"),
            ("deferredBytesPerOp", "deferred"),
        ] {
            let found = reasons(with(json!({ field: bad.clone() })), json!({}));
            assert_eq!(
                found,
                [format!("{lane}: not a number (fail closed)")],
                "{field} {bad}"
            );
        }
    }
    let unset = json!({ "name": "s", "oldGenHi": 0 });
    assert_eq!(
        reasons(unset, json!({})),
        [
            "scavenges: not a number (fail closed)",
            "retained: not a number (fail closed)"
        ]
    );
    assert_eq!(
        reasons(with(json!({ "minorHi": {"$n": "Infinity"} })), json!({})),
        ["scavenges: Infinity > 2 (transient allocation)"]
    );
}

#[test]
fn without_a_settling_collection_retained_and_buffers_are_not_judged() {
    let result = with(json!({
        "retainedReliable": false, "retainedKB_hi": 999, "arrayBuffersKB_hi": 999, "oldGenHi": 1,
    }));
    assert_eq!(reasons(result, json!({})).len(), 1);
}

#[test]
fn counters_fail_closed() {
    let limits = json!({ "counters": { "a": 0, "b": -1 } });
    assert_eq!(
        reasons(clean(), limits.clone()),
        [
            "counters: thresholds set (a, b) but the scenario measured no counters -- add statsOf (fail closed)"
        ]
    );
    assert_eq!(
        reasons(with(json!({ "counters_hi": {} })), limits.clone()),
        [
            "a: no such counter measured (statsOf keys: none)",
            "b: no such counter measured (statsOf keys: none)"
        ]
    );
    assert_eq!(
        reasons(
            with(json!({ "counters_hi": { "b": {"$n": "NaN"}, "a": -3 } })),
            limits
        ),
        ["b: not a number (fail closed)"]
    );
    // No limit in it, but set.
    assert_eq!(reasons(clean(), json!({ "counters": {} })).len(), 1);
}

#[test]
fn lanes_that_only_an_observer_has() {
    let result = with(json!({
        "bytesPerOp": 0.875, "workersBytesPerOp": 0.5, "bytesFixed": 90, "largeBytesHi": 4_000_016,
        "externalKB_hi": 2048, "retainedBytesPerOp": 0.0317, "deferredBytesPerOp": 56,
    }));
    assert_eq!(
        reasons(result.clone(), json!({ "maxBytesFixed": 64 })),
        [
            "bytes: 0.88 B/op > 0 B/op (allocation, 0.50 B/op of them in worker isolates)",
            "fixed: 90B > 64B a call",
            "large: 4000016B > 0B (large objects)",
            "external: 2048KB > 64KB (allocated off the heap)",
            "retained: 0.03 B/op > 0 B/op (leak)",
            "deferred: 56.00 B/op > 0 B/op (allocated after hot() returned)",
        ]
    );
    let raised = json!({
        "maxBytesPerOp": 1, "maxLargeBytes": 5e6, "maxExternalKB": 2048,
        "maxRetainedBytesPerOp": 1, "maxDeferredBytesPerOp": 56,
    });
    assert!(reasons(result, raised).is_empty());
    // A limit on what was not measured fails; without one, a result of another harness is not blamed.
    assert_eq!(
        reasons(clean(), json!({ "maxBytesPerOp": 1 })),
        ["bytes: not a number (fail closed)"]
    );
}

#[test]
fn doubts_are_reasons_and_no_catch() {
    let verdict = verdict_of_json(
        &with(json!({ "doubts": ["3 hits of probes were lost meanwhile"] })),
        &json!({}),
    );
    assert!(verdict.doubted() && !verdict.caught() && !verdict.pass());
    assert_eq!(
        verdict.texts(),
        ["cannot vouch: 3 hits of probes were lost meanwhile"]
    );
    let plumbing = verdict_of_json(&clean(), &json!({ "counters": { "a": 0 } }));
    assert!(!plumbing.caught() && !plumbing.pass());
    assert!(verdict_of_json(&with(json!({ "minorHi": 3 })), &json!({})).caught());
}

#[test]
fn a_result_on_two_lines() {
    let result = with(json!({
        "minorLo": 3, "minorHi": 24, "retainedKB_hi": 0.4, "oldGenHi": 2, "arrayBuffersKB_hi": 832.4,
        "counters_hi": { "grown": 3 }, "bytesPerOp": 56,
    }));
    assert_eq!(
        format_result(&result).unwrap(),
        "s\n    scavenges  N:  3  8N: 24   retained 0KB   oldgen 2   arrayBuffers 832KB   grown Δ     3   56.00 B/op"
    );
    assert!(format_result(&json!({ "name": "s" })).is_err());
    assert!(format_result(&json!(null)).is_err());
}

proptest::proptest! {
    /// Whatever comes over the pipe, judging ends, and more is never better.
    #[test]
    fn more_is_never_better(minor in 0u32..50, more in 0u32..50, max in 0u32..50) {
        let at = |x: u32| verdict_of_json(&with(json!({ "minorHi": x })), &json!({ "maxScavenges": max }));
        proptest::prop_assert!(at(minor).pass() || !at(minor + more).pass());
    }
}
