//! The guest's `/sys` and `/proc`, for interfaces of `virtio_net` and `xen-netfront`, which a
//! host's switch may serve.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use weir_limits::{AGENT_INTERFACES_MAX, AGENT_PROC_BYTES_MAX};
use weir_wire::Mac;

use crate::interrupts::{Device, queue_interrupts};
use crate::napi::Napi;
use crate::protocol::{Interface, Text};
use crate::report;
use crate::report::{Counts, Sample};

/// File in `/sys/class/net/IF` with the number of empty polls before interrupts are turned on
/// again.
pub(crate) const DEFER_HARD_IRQS: &str = "napi_defer_hard_irqs";
/// File in `/sys/class/net/IF` with NAPI's poll interval meanwhile (ns).
pub(crate) const FLUSH_TIMEOUT: &str = "gro_flush_timeout";

/// File in `/sys/class/net/IF` with the interface's number.
const IFINDEX: &str = "ifindex";

/// A file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// The error.
    pub source: io::Error,
}

impl FileError {
    pub(crate) fn at(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self { path: path.into(), source }
    }
}

/// One interface of a paravirtual driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nic {
    pub(crate) interface: Interface,
    device: Device,
    /// The interface's directory in `/sys/class/net`.
    dir: PathBuf,
}

impl Nic {
    pub(crate) fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the path of one of the interface's files in `/sys/class/net`.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Returns the NAPI instances whose settings are others than these of the interface.
    pub(crate) fn napis_set_alone(&self, polls: u64, timeout_ns: u64) -> Vec<Napi> {
        let ifindex = self.number(IFINDEX).ok().and_then(|number| number.try_into().ok());
        ifindex.map_or_else(Vec::new, |ifindex| Napi::set_alone(ifindex, polls, timeout_ns))
    }

    pub(crate) fn number(&self, name: &str) -> Result<u64, FileError> {
        let path = self.file(name);
        let text = read(&path)?;
        text.trim().parse().map_err(|_| FileError {
            source: io::Error::other(format!("{:?} is not a number", text.trim())),
            path,
        })
    }
}

/// The agent's system.
#[derive(Clone, Debug)]
pub(crate) struct Guest {
    root: PathBuf,
}

impl Guest {
    /// Returns the system at `root`, which is `/` except in tests.
    pub(crate) fn new(root: &Path) -> Self {
        Self { root: root.into() }
    }

    /// Returns the kernel's release, like `uname -r`.
    pub(crate) fn kernel(&self) -> Result<Text, FileError> {
        Ok(Text::new(read(&self.root.join("proc/sys/kernel/osrelease"))?.trim()))
    }

    /// Returns the interfaces of paravirtual drivers by name, at most `AGENT_INTERFACES_MAX`.
    pub(crate) fn interfaces(&self) -> Result<Vec<Nic>, FileError> {
        let net = self.root.join("sys/class/net");
        let entries = fs::read_dir(&net).map_err(FileError::at(&net))?;
        let mut names: Vec<OsString> = entries.flatten().map(|entry| entry.file_name()).collect();
        names.sort();
        let found = names.iter().filter_map(|name| nic(net.join(name), name));
        Ok(found.take(AGENT_INTERFACES_MAX).collect())
    }

    /// Reads the counters at `now_ns`. An interface that was removed meanwhile is left out.
    pub(crate) fn sample(&self, interfaces: &[Nic], now_ns: u64) -> Result<Sample, FileError> {
        let path = self.root.join("proc/stat");
        let ticks = rustix::param::clock_ticks_per_second();
        let cpu_ns = report::kernel_ns(&read(&path)?, ticks).ok_or_else(|| FileError {
            path,
            source: io::Error::other("no line with the times of all CPUs"),
        })?;
        let all_interrupts = read(&self.root.join("proc/interrupts"))?;
        let counts = interfaces.iter().filter_map(|interface| {
            Some(Counts {
                mac: interface.interface.mac,
                interrupts: queue_interrupts(&all_interrupts, &interface.device),
                rx_packets: interface.number("statistics/rx_packets").ok()?,
            })
        });
        Ok(Sample { at_ns: now_ns, cpu_ns, counts: counts.collect() })
    }
}

/// Returns the interface in `dir`, if it has such a driver.
fn nic(dir: PathBuf, name: &OsStr) -> Option<Nic> {
    let device_link = dir.join("device");
    let driver = fs::read_link(device_link.join("driver")).ok()?;
    let device = fs::read_link(&device_link).ok()?;
    let driver = driver.file_name()?.to_str()?;
    let device = Device::of(driver, device.file_name()?.to_str()?, name.to_str()?)?;
    let mac: Mac = read(&dir.join("address")).ok()?.trim().parse().ok()?;
    let can_defer = dir.join(DEFER_HARD_IRQS).exists() && dir.join(FLUSH_TIMEOUT).exists();
    let name = Text::new(&name.to_string_lossy());
    Some(Nic { interface: Interface { mac, name, can_defer }, device, dir })
}

/// Reads a file of the kernel, which has no length until it is read.
fn read(path: &Path) -> Result<String, FileError> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(AGENT_PROC_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(FileError::at(path))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
