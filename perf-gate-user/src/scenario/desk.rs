//! The desk: reads questions from the pipe `ask`, answers each asker through its own pipe.
//!
//! The pipes lie in the marker file's folder, belong to the program's user, and end with the folder. A
//! line that is not a question is answered with an error where its asker is known, and dropped where
//! it is not. Nothing that a program writes here becomes a figure: figures are read from the kernel
//! side for the isolate that the asker's own marker named.

use super::{
    outcome::{Outcome, Win},
    protocol::{ATOMIC, Ask, Begin, Listed, Question, Seen, Shown, Step, VERSION},
    steps::Measuring,
};
use crate::{
    judge::{detector, scenario as judge},
    model::Lane,
    observe::{self, Speaker, View, marks::MarkFile, space_name},
    v8::Version,
};
use nix::{fcntl::OFlag, sys::stat::Mode, unistd::mkfifo};
use perf_gate_ebpf::SPACES;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd as _, BorrowedFd},
        unix::fs::OpenOptionsExt as _,
    },
    path::{Path, PathBuf},
};

/// A question in a file may be this long; a result with its windows is a few kilobytes.
const LONGEST: u64 = 4 << 20;
/// Askers at a time: isolates of the tree that import the package.
const ASKERS: usize = 1024;
/// Lanes that a scenario's figures come from.
const NEEDED: [Lane; 10] = [
    Lane::Isolate,
    Lane::Gc,
    Lane::Incremental,
    Lane::External,
    Lane::Store,
    Lane::Strings,
    Lane::Large,
    Lane::Bytes,
    Lane::Live,
    Lane::Window,
];

/// A finished measurement.
#[derive(Clone, Debug)]
pub struct Kept {
    pub pid: u32,
    pub node: Option<String>,
    pub v8: Option<Version>,
    pub control: Option<String>,
    pub must_fail: bool,
    pub outcome: Result<Outcome, Thrown>,
    /// As JavaScript got it.
    pub json: Value,
    pub thresholds: Value,
}

/// A hook that threw.
#[derive(Clone, Debug)]
pub struct Thrown {
    pub stage: String,
    pub error: String,
}

struct Asker {
    speaker: Speaker,
    answers: File,
    marker: Option<[u64; SPACES]>,
    others_bytes: u64,
    measuring: Option<(Measuring, Box<Begin>)>,
}

/// See the module's text.
#[derive(Default)]
pub struct Desk {
    dir: PathBuf,
    owner: Option<(u32, u32)>,
    ask: Option<File>,
    rest: Vec<u8>,
    askers: HashMap<u64, Asker>,
    /// What the next process is told to do, and what it said there is to do.
    pub task: Value,
    pub listing: Option<(Vec<Listed>, Option<Value>)>,
    pub troubles: Vec<(String, String)>,
    /// Names of measurements in progress: what a process was at when it ended.
    pub kept: Vec<Kept>,
    /// The scenario that was being measured last, with its stage.
    pub at: Option<String>,
    pub verdicts: u64,
}

impl Desk {
    #[must_use]
    pub fn new(owner: Option<(u32, u32)>) -> Self {
        Self {
            owner,
            ..Self::default()
        }
    }

    fn pipe(&self, path: &Path) -> io::Result<File> {
        mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR)?;
        if let Some((uid, gid)) = self.owner {
            nix::unistd::chown(path, Some(uid.into()), Some(gid.into()))?;
        }
        // For both directions, so that opening waits for nobody and the other end may come and go.
        OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(path)
    }

    fn lines(&mut self) -> Vec<Vec<u8>> {
        let mut bytes = [0; 1 << 16];
        while let Some(ask) = &mut self.ask {
            match ask.read(&mut bytes) {
                Ok(0) | Err(_) => break,
                Ok(n) => self.rest.extend_from_slice(&bytes[..n]),
            }
        }
        let mut lines = Vec::new();
        while let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
            let mut line: Vec<u8> = self.rest.drain(..=end).collect();
            line.pop();
            lines.push(line);
        }
        // Nobody writes that much without a line's end.
        if self.rest.len() > ATOMIC {
            self.rest.clear();
        }
        lines
    }

    fn question(&mut self, line: &[u8], view: &mut View<'_>) {
        let Ok(Question { token, ask }) = serde_json::from_slice(line) else {
            log::warn!("a line on the pipe of questions is not one; it is left out");
            return;
        };
        let ask = match ask {
            Ask::Long {} => match self.long(token) {
                Ok(ask) => ask,
                Err(why) => return self.answer(token, &json!({ "error": why })),
            },
            ask => ask,
        };
        if let Ask::Hello { v } = ask {
            return self.hello(token, v, view);
        }
        let answer = match self.askers.remove(&token) {
            Some(mut asker) => {
                let answer = self.reply(&mut asker, ask, view);
                self.askers.insert(token, asker);
                answer
            }
            None => return,
        };
        self.answer(token, &answer);
    }

    /// A question that is too long for the pipe.
    fn long(&self, token: u64) -> Result<Ask, String> {
        let path = self.dir.join(format!("question-{token}"));
        let read = || {
            let mut text = Vec::new();
            File::open(&path)?.take(LONGEST).read_to_end(&mut text)?;
            fs::remove_file(&path)?;
            Ok::<_, io::Error>(text)
        };
        let text = read().map_err(|e| format!("the question cannot be read: {e}"))?;
        serde_json::from_slice::<Question>(&text)
            .map(|q| q.ask)
            .map_err(|e| format!("not a question: {e}"))
    }

    fn hello(&mut self, token: u64, version: u32, view: &mut View<'_>) {
        let path = self.dir.join(format!("answer-{token}"));
        if self.askers.len() >= ASKERS || self.askers.contains_key(&token) {
            return;
        }
        let Ok(answers) = self.pipe(&path) else {
            return;
        };
        let answer = if version != VERSION {
            json!({ "error": format!("the perf-gate package speaks version {version} of the protocol, this perf-gate {VERSION}: install the same release of both") })
        } else if let Some(speaker) = view.speaker(token) {
            let asker = Asker {
                speaker,
                answers,
                marker: None,
                others_bytes: 0,
                measuring: None,
            };
            self.askers.insert(token, asker);
            return self.answer(token, &json!({ "v": VERSION }));
        } else {
            json!({ "error": "perf-gate did not see this isolate's marker: its node binary is not watched, see `perf-gate doctor`" })
        };
        send(&answers, &answer);
    }

    fn answer(&mut self, token: u64, answer: &Value) {
        if let Some(asker) = self.askers.get(&token) {
            send(&asker.answers, answer);
        }
    }

    fn reply(&mut self, asker: &mut Asker, ask: Ask, view: &mut View<'_>) -> Value {
        match ask {
            Ask::Hello { .. } | Ask::Long {} => Value::Null,
            Ask::Task {} => self.task.clone(),
            Ask::Listing {
                scenarios,
                thresholds,
            } => {
                self.listing = Some((scenarios, thresholds));
                json!({})
            }
            Ask::Begin(begin) => {
                self.at = Some(begin.spec.name.clone());
                let mut measuring = Measuring::new(begin.spec.clone());
                let step = measuring.begin();
                asker.measuring = Some((measuring, begin));
                look(asker, view, &Shown::default());
                json!(step)
            }
            Ask::Step(shown) => {
                let seen = look(asker, view, &shown);
                let Some((mut measuring, begin)) = asker.measuring.take() else {
                    return json!({ "error": "no scenario is being measured" });
                };
                let step = measuring.next(&seen);
                self.go_on(asker, measuring, begin, &step, view)
            }
            Ask::Failed { stage, error, torn } => {
                let Some((mut measuring, begin)) = asker.measuring.take() else {
                    return json!({ "error": "no scenario is being measured" });
                };
                let step = measuring.fail(stage, error, torn);
                self.go_on(asker, measuring, begin, &step, view)
            }
            Ask::Verdict {
                result,
                thresholds,
                caught,
            } => {
                self.verdicts += 1;
                let verdict = judge::verdict_of_json(&result, &thresholds);
                if caught {
                    json!({ "caught": verdict.caught() })
                } else {
                    json!({ "pass": verdict.pass(), "reasons": verdict.texts() })
                }
            }
            Ask::Format { result } => match judge::format_result(&result) {
                Ok(text) => json!({ "text": text }),
                Err(error) => json!({ "error": error }),
            },
            Ask::Detector {
                controls,
                max_scavenges,
                overridden,
            } => {
                json!({ "reason": detector::validate(&controls, max_scavenges, &overridden) })
            }
            Ask::Trouble { what, error } => {
                self.troubles.push((what, error));
                json!({})
            }
        }
    }

    fn go_on(
        &mut self,
        asker: &mut Asker,
        measuring: Measuring,
        begin: Box<Begin>,
        step: &Step,
        view: &View<'_>,
    ) -> Value {
        if !matches!(step, Step::Done | Step::Failed) {
            asker.measuring = Some((measuring, begin));
            return json!(step);
        }
        self.at = None;
        let (v8, node) = view.versions(&asker.speaker);
        let outcome = match &measuring.failed {
            Some((stage, error)) => Err(Thrown {
                stage: stage.clone(),
                error: error.clone(),
            }),
            None => Ok(measuring.outcome()),
        };
        let result = match &outcome {
            Ok(outcome) => outcome.to_json(node.as_deref(), |id| space_name(v8, id)),
            Err(_) => Value::Null,
        };
        self.kept.push(Kept {
            pid: asker.speaker.pid,
            node,
            v8,
            control: begin.control,
            must_fail: begin.must_fail,
            outcome,
            json: result.clone(),
            thresholds: begin.thresholds,
        });
        let mut answer = json!(step);
        answer["result"] = result;
        answer
    }
}

impl observe::Desk for Desk {
    fn open(&mut self, marks: &MarkFile) -> io::Result<()> {
        self.askers.clear();
        self.rest.clear();
        self.dir = marks.dir().to_owned();
        self.ask = Some(self.pipe(&self.dir.join("ask"))?);
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.ask.as_ref().map(|f| f.as_fd())
    }

    fn serve(&mut self, view: &mut View<'_>) {
        for line in self.lines() {
            self.question(&line, view);
        }
    }
}

/// What the kernel side shows since the last look, and what JavaScript says of itself.
fn look(asker: &mut Asker, view: &mut View<'_>, shown: &Shown) -> Seen {
    let mut seen = Seen {
        resources: shown.resources,
        counters: shown.counters.clone(),
        is_async: shown.is_async,
        ..Seen::default()
    };
    let windows = view.take_windows(&mut asker.speaker);
    let Some(figures) = view.figures(&asker.speaker) else {
        seen.doubts.push("its isolate is gone".into());
        return seen;
    };
    let others = figures.others_bytes.saturating_sub(asker.others_bytes);
    asker.others_bytes = figures.others_bytes;
    if figures.others_moved {
        seen.doubts
            .push("another isolate's books moved while they were read".into());
    }
    for w in windows {
        if w.id == 0 {
            let least = asker.marker.get_or_insert(w.figures.spaces);
            for (least, now) in least.iter_mut().zip(w.figures.spaces) {
                *least = (*least).min(now);
            }
        } else {
            let marker = asker.marker.unwrap_or_default();
            // All windows of a step share what others did around them; steps that count hold one.
            seen.windows.push(Win::of(&w, &marker, others));
        }
    }
    if asker.marker.is_none() {
        seen.doubts
            .push("the marker's own bytes were not measured".into());
    }
    seen.doubts.extend(
        view.troubles(&asker.speaker)
            .into_iter()
            .filter(|(lane, _)| NEEDED.contains(lane))
            .map(|(lane, why)| format!("lane {} is not to be trusted: {why}", lane.name())),
    );
    seen.live_bytes = figures.live_bytes as i64;
    seen.external_live_bytes = figures.external_live_bytes;
    seen.lost = figures.lost;
    seen
}

/// An asker that does not read its answers loses them.
fn send(mut to: &File, answer: &Value) {
    let mut line = answer.to_string();
    line.push('\n');
    if let Err(e) = to.write_all(line.as_bytes()) {
        log::warn!("a program's question could not be answered: {e}");
    }
}
