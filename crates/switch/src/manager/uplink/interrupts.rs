//! Interrupts of a card on the processors of the workers that serve its queues (Dong 2011 §4.3.2, Guo 2009).
//!
//! An interrupt belongs to a queue if the driver's name for it has one of these forms: `eth0-TxRx-3`,
//! `virtio2-input.3`, `mlx5_comp3@pci:0000:01:00.0`. weir moves none while irqbalance runs, nor one that an
//! administrator has set.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use weir_topology::{cpu_list, parse_cpu_list};

/// The processors of an interrupt, as the kernel lists them.
const AFFINITY: &str = "smp_affinity_list";
/// The processors that a driver proposes, and those of an interrupt that nobody has set: both are masks.
const HINT: &str = "affinity_hint";
const DEFAULT: &str = "default_smp_affinity";
/// The program that spreads interrupts by itself.
const BALANCER: &str = "irqbalance";

/// The original setting of an interrupt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FoundIrq {
    /// The driver's name. Another name means that the number has become another interrupt's.
    pub(super) name: String,
    pub(super) cpus: String,
}

/// Settings by the number of the interrupt.
pub(super) type FoundIrqs = BTreeMap<u32, FoundIrq>;

/// Files of the kernel with the interrupts of one card.
#[derive(Debug)]
pub(super) struct Irqs<'h> {
    pub(super) proc: &'h Path,
    /// The card's device below `/sys`.
    pub(super) device: PathBuf,
}

impl Irqs<'_> {
    /// The interrupt of each queue, with its present setting.
    pub(super) fn by_queue(&self) -> BTreeMap<u16, (u32, FoundIrq)> {
        // A virtio device has them at the PCI device above it.
        let dirs = ["msi_irqs", "../msi_irqs"].map(|dir| self.device.join(dir));
        let numbers = dirs.iter().flat_map(|dir| names(dir)).filter_map(|name| name.parse().ok());
        let mut found = BTreeMap::new();
        for irq in numbers {
            let dir = self.dir(irq);
            // Each handler has a directory with its name. An interrupt with several handlers is
            // shared.
            let handlers: Vec<_> =
                names(&dir).into_iter().filter(|name| dir.join(name).is_dir()).collect();
            let [name] = &handlers[..] else { continue };
            if let (Some(queue), Ok(cpus)) = (queue_of(name), self.read(irq, AFFINITY)) {
                found.entry(queue).or_insert((irq, FoundIrq { name: name.clone(), cpus }));
            }
        }
        found
    }

    /// The reason why these interrupts are not weir's to move, if there is one.
    pub(super) fn rulers(&self, found: &FoundIrqs) -> Option<String> {
        let is_balancer = |process: &String| {
            process.bytes().all(|byte| byte.is_ascii_digit())
                && fs::read_to_string(self.proc.join(process).join("comm"))
                    .is_ok_and(|comm| comm.trim_end() == BALANCER)
        };
        if names(self.proc).iter().any(is_balancer) {
            return Some(format!("{BALANCER} moves them"));
        }
        let default = fs::read_to_string(self.proc.join("irq").join(DEFAULT));
        let default = default.ok().and_then(|mask| parse_mask(&mask));
        found.iter().find_map(|(irq, FoundIrq { name, cpus })| {
            let now = parse_cpu_list(cpus).ok();
            let hint = self.read(*irq, HINT).ok().and_then(|mask| parse_mask(&mask));
            let is_set = now.is_none() || now != default && now != hint;
            is_set.then(|| format!("the host has {name} on processors {cpus}"))
        })
    }

    /// Sends an interrupt to one processor.
    pub(super) fn set(&self, irq: u32, cpu: u16) -> io::Result<()> {
        self.write(irq, &cpu_list(&BTreeSet::from([cpu])))
    }

    /// Restores the original settings, all that it can, except those of interrupts that are gone.
    pub(super) fn restore<'f>(
        &self,
        found: impl IntoIterator<Item = (&'f u32, &'f FoundIrq)>,
    ) -> io::Result<()> {
        let there = |(irq, found): &(&u32, &FoundIrq)| self.dir(**irq).join(&found.name).is_dir();
        let restored = found.into_iter().filter(there).map(|(irq, it)| self.write(*irq, &it.cpus));
        restored.filter_map(Result::err).reduce(|first, _| first).map_or(Ok(()), Err)
    }

    fn dir(&self, irq: u32) -> PathBuf {
        self.proc.join("irq").join(irq.to_string())
    }

    fn read(&self, irq: u32, name: &str) -> io::Result<String> {
        Ok(fs::read_to_string(self.dir(irq).join(name))?.trim().to_owned())
    }

    fn write(&self, irq: u32, cpus: &str) -> io::Result<()> {
        let path = self.dir(irq).join(AFFINITY);
        let written = fs::write(&path, cpus);
        written
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }
}

/// The names in a directory; none if it is not there.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// The receive queue that an interrupt of this name is for.
fn queue_of(name: &str) -> Option<u16> {
    let name = name.split('@').next()?.to_ascii_lowercase();
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let counts = stem.ends_with(['-', '.']) || stem.ends_with("comp");
    let only_sends = (stem.contains("tx") || stem.contains("output")) && !stem.contains("rx");
    let number = name.get(stem.len()..)?;
    if counts && !only_sends { number.parse().ok() } else { None }
}

/// The processors of a mask: words of 32 bits in hexadecimal digits, the highest first.
fn parse_mask(mask: &str) -> Option<BTreeSet<u16>> {
    let mut cpus = BTreeSet::new();
    for (nth, word) in mask.trim().split(',').rev().enumerate() {
        let (word, first) = (u32::from_str_radix(word, 16).ok()?, u16::try_from(32 * nth).ok()?);
        cpus.extend((0..32).filter(|bit| word >> bit & 1 == 1).map(|bit| first + bit));
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_told_by_the_drivers_name() {
        for (name, queue) in [
            ("eth0-TxRx-3", Some(3)),
            ("eth0-rx-0", Some(0)),
            ("eth0-Tx-Rx-7", Some(7)),
            ("virtio2-input.12", Some(12)),
            ("mlx5_comp5@pci:0000:01:00.0", Some(5)),
            ("virtio2-output.12", None),
            ("eth0-tx-1", None),
            ("virtio2-virtqueues", None),
            ("mlx5_async0@pci:0000:01:00.0", None),
            ("ena-mgmnt@pci:0000:00:05.0", None),
            ("eth0", None),
            ("i40e-0000:3b:00.0:misc", None),
            ("eth0-rx-99999", None),
            ("", None),
        ] {
            assert_eq!(queue_of(name), queue, "{name}");
        }
    }

    #[test]
    fn a_mask_has_its_highest_word_first() {
        assert_eq!(parse_mask("5\n"), Some([0, 2].into()));
        assert_eq!(parse_mask("00000001,80000002"), Some([1, 31, 32].into()));
        assert_eq!(parse_mask("0"), Some([].into()));
        assert_eq!((parse_mask(""), parse_mask("5,x")), (None, None));
    }
}
