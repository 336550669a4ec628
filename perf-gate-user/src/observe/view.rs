//! What a [`Desk`](super::Desk) may look at while programs run: an isolate that speaks to it, that
//! isolate's figures and closed windows, and what the other isolates of its process have allocated.
//!
//! The asking isolate closes its books right before it asks (`MARK_ASK`), so its own figures are
//! exact. Another isolate's books are as of its last boundary; what it allocated since is the way its
//! `top` went in its memory, which is read here, and read again when the books moved meanwhile. With
//! its thread at rest that is exact too.

use super::{
    collect::short_name,
    images::Images,
    kernel_side::KernelSide,
    tree::{Tree, Watched},
    windows::EMPTY,
};
use crate::{model::Lane, v8::Version};
use nix::{
    sys::uio::{RemoteIoVec, process_vm_readv},
    unistd::Pid,
};
use perf_gate_ebpf::{HeapKey, Iso, OWN_WINDOWS, PAGE_BITS, SPACES, Window, WindowKey};
use std::io::IoSliceMut;

/// How often another isolate's books are read anew when they moved under the reading.
const TRIES: usize = 4;
/// Byte offset of `top` in an allocation area.
const TOP: u64 = 8;

pub struct View<'a> {
    pub(super) kernel: &'a mut KernelSide,
    pub(super) tree: &'a Tree,
    pub(super) images: &'a Images,
}

/// An isolate that spoke to us.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speaker {
    heap: HeapKey,
    seq: u64,
    tgid: u32,
    pub pid: u32,
    /// Windows of it that were taken already.
    taken: u64,
}

/// Figures of a speaker's isolate and process at one moment, since their beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    pub spaces: [u64; SPACES],
    pub large_bytes: u64,
    /// What V8 last summed up as living, and how often it has.
    pub live_bytes: u64,
    pub live_reads: u64,
    pub external_live_bytes: i64,
    /// Bytes that the other isolates of the process allocated, large objects included.
    pub others_bytes: u64,
    pub others: u64,
    /// The other isolates could not be read while they stood still.
    pub others_moved: bool,
    /// Hits of the whole session whose effect could not be stored.
    pub lost: u64,
}

impl View<'_> {
    /// The isolate that goes by this number.
    pub fn speaker(&self, token: u64) -> Option<Speaker> {
        let (heap, iso) = self
            .kernel
            .isos
            .iter()
            .filter_map(Result::ok)
            .find(|(_, iso)| iso.token == token && token != 0)?;
        let pid = self.tree.running(iso.tgid)?.pid;
        Some(Speaker {
            heap,
            seq: iso.seq,
            tgid: iso.tgid,
            pid,
            taken: 0,
        })
    }

    fn process(&self, of: &Speaker) -> Option<&Watched> {
        self.tree.running(of.tgid)
    }

    /// V8's and node's version in its process.
    pub fn versions(&self, of: &Speaker) -> (Option<Version>, Option<String>) {
        let image = self.process(of).and_then(|w| w.node);
        image.map_or((None, None), |id| {
            let plan = &self.images.node(id).plan;
            (plan.version(), plan.node_version.clone())
        })
    }

    /// Why a lane cannot be trusted in the speaker's process, for each that cannot.
    pub fn troubles(&self, of: &Speaker) -> Vec<(Lane, String)> {
        let every = |why: &str| Lane::ALL.map(|l| (l, why.to_owned())).to_vec();
        let Some(w) = self.process(of) else {
            return every("the process is not among the watched ones");
        };
        if let Some(why) = &w.trouble {
            return every(why);
        }
        let Some(id) = w.node else {
            return every("no V8 was found in it");
        };
        let image = self.images.node(id);
        let blind = image.plan.blind.iter().chain(&image.plan.doubts).cloned();
        let unproven = Lane::ALL.into_iter().filter_map(|lane| {
            let why = match image.proof.lanes.get(&lane) {
                Some(Ok(())) => return None,
                Some(Err(why)) => why.clone(),
                None => "no control has proven it".to_owned(),
            };
            Some((lane, why))
        });
        blind.chain(unproven).collect()
    }

    /// Its figures now; `None` when its isolate is gone.
    pub fn figures(&self, of: &Speaker) -> Option<Figures> {
        let own = self.kernel.isos.get(&of.heap, 0).ok()?;
        let proc = self.kernel.procs.get(&of.tgid, 0).ok()?;
        let mut figures = Figures {
            large_bytes: own.large_bytes,
            live_bytes: own.live_bytes,
            live_reads: own.live_reads,
            external_live_bytes: proc.external_allocated() as i64 - proc.external_freed() as i64,
            lost: self.kernel.op_counts().ok()?.iter().map(|o| o.lost).sum(),
            ..Figures::default()
        };
        for lab in own.set.labs.iter().take(own.set.count as usize) {
            figures.spaces[lab.space as usize % SPACES] += lab.total;
        }
        self.others(of, &mut figures);
        Some(figures)
    }

    fn others(&self, of: &Speaker, figures: &mut Figures) {
        let mine = |iso: &Iso| iso.proc_id == of.heap.proc_id && iso.seq != of.seq;
        let filed = self.tree.isolates.get(&of.heap.proc_id);
        for iso in filed.into_iter().flatten().filter(|i| mine(i)) {
            figures.others += 1;
            figures.others_bytes += books(iso);
        }
        let ended = self.kernel.dead_isos.iter().filter_map(Result::ok);
        for (_, iso) in ended.filter(|(_, i)| mine(i)) {
            figures.others += 1;
            figures.others_bytes += books(&iso);
        }
        let keys: Vec<HeapKey> = self
            .kernel
            .isos
            .keys()
            .filter_map(Result::ok)
            .filter(|k| k.proc_id == of.heap.proc_id && *k != of.heap)
            .collect();
        for key in keys {
            figures.others += 1;
            match self.living(of, &key) {
                Some(bytes) => figures.others_bytes += bytes,
                None => figures.others_moved = true,
            }
        }
    }

    /// What a living isolate has allocated up to now.
    fn living(&self, of: &Speaker, key: &HeapKey) -> Option<u64> {
        for _ in 0..TRIES {
            let before = self.kernel.isos.get(key, 0).ok()?;
            let mut bytes = books(&before);
            for lab in before.set.labs.iter().take(before.set.count as usize) {
                // Without an area, or not looked at yet.
                if lab.last == 0 || lab.last == u64::MAX {
                    continue;
                }
                let top = read_word(of.pid, lab.addr + TOP)?;
                // Elsewhere: the area is being replaced, and the books say so by the next reading.
                if top >= lab.last && (top - 1) >> PAGE_BITS == (lab.last - 1) >> PAGE_BITS {
                    bytes += top - lab.last;
                }
            }
            let after = self.kernel.isos.get(key, 0).ok()?;
            if books(&after) == books(&before) {
                return Some(bytes);
            }
        }
        None
    }

    /// The harness's windows of the speaker that closed since the last call, in order, and those that
    /// measure the marker itself.
    pub fn take_windows(&mut self, of: &mut Speaker) -> Vec<Window> {
        let Ok(iso) = self.kernel.isos.get(&of.heap, 0) else {
            return Vec::new();
        };
        let mut taken = Vec::new();
        while of.taken < iso.windows {
            let key = WindowKey {
                iso_seq: of.seq,
                number: of.taken + 1,
            };
            if let Ok(window) = self.kernel.windows.get(&key, 0) {
                if window.closed == 0 {
                    break;
                }
                let own = window.id >= OWN_WINDOWS;
                if own {
                    let _ = self.kernel.windows.remove(&key);
                }
                if own || window.id == EMPTY {
                    taken.push(window);
                }
            }
            of.taken += 1;
        }
        taken
    }
}

/// Bytes in an isolate's books.
fn books(iso: &Iso) -> u64 {
    let labs = iso.set.labs.iter().take(iso.set.count as usize);
    labs.map(|l| l.total).sum::<u64>() + iso.large_bytes
}

/// Names of spaces as they are reported.
pub fn space_name(v8: Option<Version>, id: usize) -> String {
    short_name(v8, id as u32)
}

fn read_word(pid: u32, address: u64) -> Option<u64> {
    let mut word = [0; 8];
    let remote = RemoteIoVec {
        base: usize::try_from(address).ok()?,
        len: word.len(),
    };
    let mut local = [IoSliceMut::new(&mut word)];
    let read = process_vm_readv(Pid::from_raw(pid.cast_signed()), &mut local, &[remote]).ok()?;
    (read == 8).then(|| u64::from_ne_bytes(word))
}
