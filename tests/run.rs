//! One run of `perf-gate watch` and what it left: the exit code, both outputs, the machine record.
//!
//! The record goes to a file of its own, since standard output belongs to the program. A run has a time
//! limit: a detector that hangs has to fail its test and not the whole suite.

use crate::{binary, cache_dir};
use serde_json::Value;
use std::{
    ffi::{OsStr, OsString},
    io::Read,
    os::unix::process::{CommandExt as _, ExitStatusExt as _},
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

/// No test program runs for more than a few seconds.
const PATIENCE: Duration = Duration::from_secs(120);

/// A `perf-gate watch` to run.
#[derive(Debug)]
pub struct Watch {
    options: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    cwd: Option<PathBuf>,
    patience: Duration,
}

impl Default for Watch {
    fn default() -> Self {
        Self::new()
    }
}

impl Watch {
    #[must_use]
    pub fn new() -> Self {
        Self {
            options: Vec::new(),
            env: Vec::new(),
            cwd: None,
            patience: PATIENCE,
        }
    }

    /// Options of perf-gate.
    #[must_use]
    pub fn options<S: AsRef<OsStr>>(mut self, options: impl IntoIterator<Item = S>) -> Self {
        let options = options.into_iter().map(|o| o.as_ref().to_owned());
        self.options.extend(options);
        self
    }

    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        let pair = (name.as_ref().to_owned(), value.as_ref().to_owned());
        self.env.push(pair);
        self
    }

    #[must_use]
    pub fn cwd(mut self, dir: impl Into<PathBuf>) -> Self {
        self.cwd = Some(dir.into());
        self
    }

    #[must_use]
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Observes `command` to its end.
    ///
    /// # Panics
    /// When perf-gate cannot be started, takes too long, or writes a record that is no record.
    pub fn run<S: AsRef<OsStr>>(self, command: impl IntoIterator<Item = S>) -> Observed {
        let dir = tempfile::tempdir().expect("a temporary folder can be made");
        let record = dir.path().join("run.ndjson");
        let mut watch = Command::new(binary());
        watch.args(["watch", "--no-color", "--ndjson"]).arg(&record);
        watch.args(&self.options).arg("--").args(command);
        watch.env("PERF_GATE_CACHE_DIR", cache_dir());
        watch.env_remove("NODE_OPTIONS").envs(self.env);
        if let Some(dir) = &self.cwd {
            watch.current_dir(dir);
        }
        // A group of its own, so that a run that takes too long can be ended whole.
        watch.process_group(0).stdin(Stdio::null());
        watch.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = watch.spawn().expect("perf-gate starts");
        let stdout = reader(child.stdout.take());
        let stderr = reader(child.stderr.take());
        let status = wait(&mut child, self.patience);
        let stdout = stdout.join().expect("the reader of stdout ends");
        let stderr = stderr.join().expect("the reader of stderr ends");
        let Some(status) = status else {
            panic!(
                "still running after {} s: {watch:?}\n{stdout}\n{stderr}",
                self.patience.as_secs()
            );
        };
        let text = std::fs::read_to_string(&record).unwrap_or_default();
        let records = text.lines().map(|line| {
            serde_json::from_str(line).unwrap_or_else(|e| panic!("not JSON ({e}): {line}"))
        });
        Observed {
            status,
            records: records.collect(),
            stdout,
            stderr,
        }
    }
}

fn reader(from: Option<impl Read + Send + 'static>) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut from) = from {
            let _ = from.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// `None` when it had to be ended.
fn wait(child: &mut Child, patience: Duration) -> Option<ExitStatus> {
    let until = Instant::now() + patience;
    loop {
        if let Some(status) = child.try_wait().expect("we can wait for perf-gate") {
            return Some(status);
        }
        if Instant::now() > until {
            let group = nix::unistd::Pid::from_raw(child.id().cast_signed());
            let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
            let _ = child.wait();
            return None;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// What a run left.
#[derive(Debug)]
pub struct Observed {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
    /// The lines of the machine record; none when there is no record.
    pub records: Vec<Value>,
}

impl Observed {
    /// The exit code, 128 + n after signal n.
    #[must_use]
    pub fn code(&self) -> i32 {
        let signal = || 128 + self.status.signal().unwrap_or_default();
        self.status.code().unwrap_or_else(signal)
    }

    /// Fails the test unless the exit code is `code`.
    ///
    /// # Panics
    /// That is its job.
    #[must_use]
    pub fn expect_code(self, code: i32) -> Self {
        assert_eq!(
            self.code(),
            code,
            "exit code; stderr:\n{}\nverdict: {}",
            self.stderr,
            self.verdict()
        );
        self
    }

    /// The records of one type.
    pub fn of<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.records.iter().filter(move |r| r["type"] == kind)
    }

    /// The last record, if it is the verdict; else null.
    #[must_use]
    pub fn verdict(&self) -> &Value {
        let last = self.records.last().filter(|r| r["type"] == "verdict");
        last.unwrap_or(&Value::Null)
    }

    /// The processes in which V8 was found.
    #[must_use]
    pub fn nodes(&self) -> Vec<&Value> {
        self.of("process").filter(|p| !p["v8"].is_null()).collect()
    }

    /// The only process with V8.
    ///
    /// # Panics
    /// When there are none or more.
    #[must_use]
    pub fn node(&self) -> &Value {
        let nodes = self.nodes();
        assert_eq!(
            nodes.len(),
            1,
            "processes with V8; stderr:\n{}",
            self.stderr
        );
        nodes[0]
    }

    /// The lane of that name.
    ///
    /// # Panics
    /// When there is none.
    #[must_use]
    pub fn lane(&self, name: &str) -> &Value {
        self.of("lane")
            .find(|l| l["lane"] == name)
            .unwrap_or_else(|| panic!("no lane {name}"))
    }

    /// Fails the test unless every lane is proven and lost nothing, and nothing is in doubt.
    ///
    /// # Panics
    /// That is its job.
    pub fn expect_proven(&self) {
        let mut lanes = 0;
        for lane in self.of("lane") {
            lanes += 1;
            assert!(lane["proven"] == true && lane["lost"] == 0, "{lane}");
        }
        assert!(lanes > 0, "no lane lines; stderr:\n{}", self.stderr);
        assert_eq!(self.verdict()["doubts"], serde_json::json!([]));
    }
}
