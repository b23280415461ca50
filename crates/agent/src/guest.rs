//! The guest's `/sys` and `/proc`, for interfaces of `virtio_net` and `xen-netfront`, which a
//! host's switch may serve.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use weir_limits::{AGENT_INTERFACES_MAX, AGENT_PROC_BYTES_MAX};
use weir_wire::Mac;

use crate::napi::Napi;
use crate::protocol::{Interface, Text};
use crate::report;
use crate::report::{Counts, Sample};

/// File in `/sys/class/net/IF` with the number of empty polls before interrupts are turned on
/// again.
pub(crate) const DEFER_HARD_IRQS: &str = "napi_defer_hard_irqs";
/// File in `/sys/class/net/IF` with NAPI's poll interval until then (ns).
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

    /// Returns the NAPI instances whose settings differ from those of the interface.
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

/// A device, by its name in `/proc/interrupts`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// `virtio2`.
    Virtio(String),
    /// A Xen vif: `vif0`, and the name of its interface, which older drivers use.
    Xen { vif: String, interface: String },
}

impl Device {
    /// Returns the device called `device` of a driver, with names from sysfs (`vif-0` of `vif` is
    /// xen-netfront's); `None` for other drivers.
    pub(crate) fn of(driver: &str, device: &str, interface: &str) -> Option<Self> {
        match driver {
            "virtio_net" => Some(Self::Virtio(device.to_owned())),
            "vif" => {
                let vif = format!("vif{}", device.strip_prefix("vif-")?);
                Some(Self::Xen { vif, interface: interface.to_owned() })
            }
            _ => None,
        }
    }

    /// Returns true if an interrupt of this name belongs to one of its queues.
    ///
    /// xen-netfront names the interrupts of queue 0 `vif0-q0-tx` and `vif0-q0-rx`, or `eth0-q0-tx`
    /// once the interface has its name, and `eth0` if both rings share one channel.
    fn has_queue(&self, name: &str) -> bool {
        match self {
            Self::Virtio(device) => name.strip_prefix(device.as_str()).is_some_and(|of_device| {
                of_device.is_empty()
                    || ["-input", "-output", "-virtqueues"]
                        .iter()
                        .any(|of| of_device.starts_with(of))
            }),
            Self::Xen { interface, .. } if name == interface => true,
            Self::Xen { vif, interface } => [vif, interface].into_iter().any(|prefix| {
                let queue = name.strip_prefix(prefix.as_str()).and_then(|q| q.strip_prefix("-q"));
                queue.is_some_and(|queue| {
                    let number = queue.trim_start_matches(|digit: char| digit.is_ascii_digit());
                    number.len() < queue.len() && matches!(number, "" | "-tx" | "-rx")
                })
            }),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Virtio(device) => device.fmt(out),
            Self::Xen { vif, .. } => vif.fmt(out),
        }
    }
}

/// Returns the interrupts of `device` for its queues, on all CPUs; `None` if no line names it (s390
/// counts all devices in one).
///
/// A line is `NUMBER: count for each CPU, controller and its line, names`, with names separated by
/// commas. A virtio device's names depend on its vectors: one for each queue (`virtio2-input.0`,
/// `virtio2-output.0`), one for all queues (`virtio2-virtqueues`), or one for everything
/// (`virtio2`, perhaps shared with other devices). `virtio2-config` belongs to no queue.
fn queue_interrupts(text: &str, device: &Device) -> Option<u64> {
    let mut lines = text.lines();
    let cpus = lines.next()?.split_whitespace().filter(|word| word.starts_with("CPU")).count();
    lines
        .filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let words = rest.split_whitespace();
            let named =
                words.clone().skip(cpus).any(|word| device.has_queue(word.trim_end_matches(',')));
            named.then(|| {
                let counts = words.take(cpus).filter_map(|word| word.parse::<u64>().ok());
                counts.fold(0_u64, u64::saturating_add)
            })
        })
        .reduce(u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_virtio(text: &str, device: &str) -> Option<u64> {
        queue_interrupts(text, &Device::Virtio(device.into()))
    }

    /// Linux 6.1, a PV guest with two interfaces, one of which has a single channel for both rings.
    const XEN_6_1: &str = "\
            CPU0       CPU1
  1:       4040       3977  xen-percpu    -virq      timer0
 17:          0          0   xen-dyn    -event     xenbus
 18:         66          0   xen-dyn    -event     hvc_console
 19:         20          3   xen-dyn-lateeoi    -event     vif0-q0-tx
 20:        100         11   xen-dyn-lateeoi    -event     vif0-q0-rx
 21:          0          9   xen-dyn-lateeoi    -event     vif0-q1-rx
 22:       1000          0   xen-dyn-lateeoi    -event     eth1
 23:        500          0   xen-dyn-lateeoi    -event     vif01-q0-rx
 24:        700          0   xen-dyn-lateeoi    -event     vif0-qx
";

    /// Linux 6.18, virtio-pci with MSI-X; virtio4 is a random-number generator, whose queue is an
    /// `input` without a number.
    const MSIX_6_18: &str = "\
           CPU0       CPU1
 24:          1          0  IO-APIC   5-edge      ACPI:Ged
 35:          0          1  PCI-MSIX-0000:00:02.0   0-edge      virtio1-config
 36:          0     953674  PCI-MSIX-0000:00:02.0   1-edge      virtio1-req.0
 37:          2          3  PCI-MSIX-0000:00:03.0   0-edge      virtio2-config
 38:          0      23967  PCI-MSIX-0000:00:03.0   1-edge      virtio2-input.0
 39:      18548          1  PCI-MSIX-0000:00:03.0   2-edge      virtio2-output.0
 34:        582          0  PCI-MSIX-0000:00:05.0   1-edge      virtio4-input
NMI:          0          0   Non-maskable interrupts
LOC:    6572618    5959168   Local timer interrupts
ERR:          0
MIS:          0
";

    /// Linux 4.x and 5.x; virtio10 must not be taken for virtio1.
    const MSIX_5: &str = "            CPU0       CPU1       CPU2       CPU3
   0:         38          0          0          0   IO-APIC    2-edge      timer
  25:          0          0          0          0   PCI-MSI 49152-edge      virtio1-config
  26:       1000         20          3          0   PCI-MSI 49153-edge      virtio1-input.0
  27:          1          0          0          0   PCI-MSI 49154-edge      virtio1-output.0
  28:          0        500          0          0   PCI-MSI 49155-edge      virtio1-input.1
  29:          0          7          0          0   PCI-MSI 49156-edge      virtio1-output.1
  31:          0          0      90000          0   PCI-MSI 65537-edge      virtio10-input.0
";

    /// `/proc/interrupts` of a device with fewer vectors than queues.
    const MSIX_SHARED: &str = "           CPU0
 30:          4   PCI-MSI 65536-edge      virtio3-config
 31:       1234   PCI-MSI 65537-edge      virtio3-virtqueues
";

    /// No MSI-X: the line of the PCI slot, with a neighbour on it.
    const INTX: &str = "           CPU0       CPU1
 10:         11         22  IO-APIC   10-fasteoi   uhci_hcd:usb1, virtio0, virtio1
 11:          5          0  IO-APIC   11-fasteoi   virtio2
";

    /// arm64: virtio-mmio on a GIC, whose line is a number of its own.
    const MMIO_ARM64: &str = "           CPU0       CPU1
 11:     123456     654321     GICv3  27 Level     arch_timer
 45:         70          7     GICv3  78 Edge      virtio1
 46:          1          0     GICv3  79 Edge      virtio0
IPI0:      1000       1000       Rescheduling interrupts
";

    #[test]
    fn queues_of_one_device_are_added_up_over_cpus() {
        assert_eq!(of_virtio(MSIX_6_18, "virtio2"), Some(23_967 + 18_548 + 1));
        assert_eq!(of_virtio(MSIX_6_18, "virtio4"), Some(582));
        assert_eq!(of_virtio(MSIX_5, "virtio1"), Some(1023 + 1 + 500 + 7));
        assert_eq!(of_virtio(MSIX_5, "virtio10"), Some(90_000));
    }

    #[test]
    fn one_interrupt_for_all_queues_counts() {
        assert_eq!(of_virtio(MSIX_SHARED, "virtio3"), Some(1234));
        assert_eq!(of_virtio(INTX, "virtio0"), Some(33));
        assert_eq!(of_virtio(INTX, "virtio1"), Some(33));
        assert_eq!(of_virtio(INTX, "virtio2"), Some(5));
        assert_eq!(of_virtio(MMIO_ARM64, "virtio1"), Some(77));
    }

    #[test]
    fn queues_of_a_vif_are_added_up_whatever_the_driver_calls_them() {
        let vif = |device, interface| Device::of("vif", device, interface).unwrap();
        let count = |device| queue_interrupts(XEN_6_1, &device);
        assert_eq!(count(vif("vif-0", "eth0")), Some(20 + 3 + 100 + 11 + 9));
        assert_eq!(count(vif("vif-1", "eth1")), Some(1000));
        assert_eq!(count(vif("vif-2", "eth2")), None);
        let before = XEN_6_1.replace("vif0-", "eth0-");
        assert_eq!(queue_interrupts(&before, &vif("vif-0", "eth0")), Some(143));
        assert_eq!(Device::of("vif", "0000:00:07.0", "eth0"), None);
        assert_eq!(Device::of("e1000", "0000:00:07.0", "eth0"), None);
    }

    #[test]
    fn a_device_without_a_line_has_no_count() {
        assert_eq!(of_virtio(MSIX_6_18, "virtio3"), None);
        assert_eq!(of_virtio(MSIX_6_18, "virtio1"), None);
        assert_eq!(of_virtio("", "virtio0"), None);
        assert_eq!(of_virtio("\n:::\nvirtio0\n: virtio0", "virtio0"), Some(0));
    }
}
