//! The verdict as JUnit XML, which most CI systems show beside their tests.
//!
//! A run is one test case. A budget that was not kept is a *failure* of it, a run that cannot be
//! vouched for is an *error*: the difference that JUnit makes between a wrong result and none.

use std::{io, time::Duration};

use quick_junit::{NonSuccessKind, TestCase, TestCaseStatus, TestSuite};

use super::{Report, text::clean};
use crate::{
    judge::{DecidedBy, Verdict},
    model::Run,
};

pub struct Junit;

impl Report for Junit {
    fn write(&self, run: &Run, verdict: &Verdict, out: &mut dyn io::Write) -> io::Result<()> {
        let mut status = TestCaseStatus::success();
        if !verdict.pass {
            status = match verdict.decided_by {
                DecidedBy::Detector => TestCaseStatus::non_success(NonSuccessKind::Error),
                DecidedBy::Budgets | DecidedBy::Command => {
                    TestCaseStatus::non_success(NonSuccessKind::Failure)
                }
            };
            let reasons: Vec<_> = verdict.reasons.iter().map(|r| clean(r)).collect();
            status
                .set_message(reasons.join("; "))
                .set_type(verdict.decided_by.name())
                .set_description(reasons.join("\n"));
        }
        let mut case = TestCase::new(clean(&run.command.join(" ")).into_owned(), status);
        case.set_classname("watch")
            .set_time(Duration::from_nanos(run.wall_ns));
        let mut suite = TestSuite::new("perf-gate");
        suite.add_test_case(case);
        let mut report = quick_junit::Report::new("perf-gate");
        report.add_test_suite(suite);
        report.serialize(out).map_err(io::Error::other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    fn xml(verdict: &Verdict) -> String {
        let mut run = sample::run();
        run.command.push("<&\"\u{1}".into());
        let mut out = Vec::new();
        Junit.write(&run, verdict, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_verdict_is_a_test_case() {
        let mut verdict = Verdict {
            pass: true,
            code: 0,
            decided_by: DecidedBy::Command,
            reasons: Vec::new(),
        };
        let passed = xml(&verdict);
        assert!(
            passed.contains(r#"tests="1" skipped="0" failures="0" errors="0""#),
            "{passed}"
        );
        assert!(passed.contains("npm test &lt;&amp;&quot;"), "{passed}");
        verdict.distrust("lane gc is not proven".into());
        let doubtful = xml(&verdict);
        assert!(
            doubtful.contains(r#"<error message="lane gc is not proven" type="detector">"#),
            "{doubtful}"
        );
        verdict.decided_by = DecidedBy::Budgets;
        assert!(xml(&verdict).contains("<failure "));
    }
}
