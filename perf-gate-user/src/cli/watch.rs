//! `perf-gate watch`: open the outputs, observe, judge, print.

use super::{args, cache_dir, logger};
use crate::{
    judge::{self, CANNOT_VOUCH},
    observe::{
        self, ObserveError, Request, Session, Until,
        proof::{Mode, Prover},
    },
    report::{
        Report as _,
        human::Human,
        junit::Junit,
        ndjson::{Header, Record},
        output::{Output, OutputError},
        terminal::Terminal,
    },
    scenario::Desk,
    target::{Identity, IdentityError, Inherited, Launch},
};
use std::{
    io::Write as _,
    sync::Arc,
    time::{Instant, SystemTime},
};

#[derive(Debug, thiserror::Error)]
enum WatchError {
    #[error(transparent)]
    Identity(#[from] IdentityError),
    #[error(transparent)]
    Output(#[from] OutputError),
    #[error(transparent)]
    Observe(#[from] ObserveError),
}

impl WatchError {
    fn exit_code(&self) -> u8 {
        match self {
            Self::Output(e) => e.exit_code(),
            Self::Observe(e) => e.exit_code(),
            Self::Identity(_) => CANNOT_VOUCH,
        }
    }
}

/// Runs the command and returns the exit code.
pub fn run(args: &args::Watch, inherited: Inherited, start: Instant) -> u8 {
    logger::init(args.output.verbose);
    match watch(args, inherited, start) {
        Ok(code) => code,
        Err(e) => {
            super::complain(&e);
            e.exit_code()
        }
    }
}

fn watch(args: &args::Watch, inherited: Inherited, start: Instant) -> Result<u8, WatchError> {
    let identity = Identity::resolve(args.as_root)?;
    let owner = identity.ids();
    let command: Vec<String> = args
        .command
        .iter()
        .map(|a| a.to_string_lossy().into_owned())
        .collect();
    let kernel = observe::kernel_release();
    let started = SystemTime::now();
    let header = Header {
        command: &command,
        kernel: &kernel,
        arch: std::env::consts::ARCH,
        started,
    };
    let open = |path: &std::path::PathBuf| {
        let out = Output::open(path)?;
        if let Some((uid, gid)) = owner {
            out.set_owner(uid, gid);
        }
        Ok::<_, OutputError>(out)
    };
    let record = args
        .output
        .ndjson
        .as_deref()
        .map(|path| Record::begin(path, owner, &header))
        .transpose()?;
    let junit = args.output.junit.as_ref().map(open).transpose()?;

    let inherited = Arc::new(inherited);
    let cache = cache_dir::find();
    let mode = match (args.prove, args.no_prove) {
        (true, _) => Mode::Always,
        (_, true) => Mode::Never,
        _ => Mode::Needed,
    };
    let request = Request {
        plans: cache.clone(),
        prover: Prover::new(mode, cache, identity.clone(), Arc::clone(&inherited)),
        started,
        start,
    };
    let launch = Launch {
        argv: args.command.clone(),
        identity,
        hold: true,
        ..Launch::default()
    };
    let until = Until {
        tree: !args.no_wait_tree,
        ..Until::default()
    };
    let mut session = Session::open(request)?;
    // A program that measures scenarios of its own asks for figures and verdicts while it runs.
    let mut desk = Desk::new(owner);
    let ended = session.run(launch, &inherited, until, Some(&mut desk))?;
    let run = session.close(&args.command, ended.end)?;
    let mut verdict = judge::verdict(&run, &args.limits.budgets());
    let judged = verdict.clone();
    // The verdict is printed below, with this among its reasons.
    let mut trouble = |e: OutputError| verdict.distrust(e.to_string());
    if let Some(record) = record
        && let Err(e) = record.finish(&run, &judged)
    {
        trouble(e);
    }
    if let Some(mut out) = junit {
        out.put(|w| Junit.write(&run, &judged, w));
        if let Err(e) = out.commit() {
            trouble(e);
        }
    }
    if !args.output.quiet {
        let mut human = Human::stderr(args.output.no_color);
        let terminal = Terminal {
            width: human.width,
            color: true,
            verbose: args.output.verbose,
        };
        // A closed standard error is the user's choice.
        let _ = terminal
            .write(&run, &verdict, &mut human)
            .and_then(|()| human.flush());
    } else if verdict.code == CANNOT_VOUCH || verdict.decided_by != judge::DecidedBy::Command {
        for reason in &verdict.reasons {
            super::complain(reason);
        }
    }
    Ok(verdict.code)
}
