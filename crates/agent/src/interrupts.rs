//! `/proc/interrupts`: how often a virtio device has interrupted.

/// The interrupts of `device` (`virtio2`) that are for its queues, on all CPUs; `None` if no line names
/// it (s390 counts all devices in one).
///
/// A line is `NUMBER: count for each CPU, controller and its line, names`, where names are separated by
/// commas. How the kernel names a virtio device's interrupts depends on what it got from the bus:
/// one each for a queue (`virtio2-input.0`, `virtio2-output.0`), one for all queues
/// (`virtio2-virtqueues`), or one for all it has to say (`virtio2`, perhaps shared with other
/// devices). `virtio2-config` is no queue's.
pub(crate) fn queue_interrupts(text: &str, device: &str) -> Option<u64> {
    let mut lines = text.lines();
    let cpus = lines.next()?.split_whitespace().filter(|word| word.starts_with("CPU")).count();
    lines
        .filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            let words = rest.split_whitespace();
            let named = words.clone().skip(cpus).any(|word| is_queue_of(word, device));
            named.then(|| {
                let counts = words.take(cpus).filter_map(|word| word.parse::<u64>().ok());
                counts.fold(0_u64, u64::saturating_add)
            })
        })
        .reduce(u64::saturating_add)
}

fn is_queue_of(name: &str, device: &str) -> bool {
    let name = name.trim_end_matches(',');
    name.strip_prefix(device).is_some_and(|of_device| {
        of_device.is_empty()
            || ["-input", "-output", "-virtqueues"].iter().any(|of| of_device.starts_with(of))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Too few vectors for the queues.
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
        assert_eq!(queue_interrupts(MSIX_6_18, "virtio2"), Some(23_967 + 18_548 + 1));
        assert_eq!(queue_interrupts(MSIX_6_18, "virtio4"), Some(582));
        assert_eq!(queue_interrupts(MSIX_5, "virtio1"), Some(1023 + 1 + 500 + 7));
        assert_eq!(queue_interrupts(MSIX_5, "virtio10"), Some(90_000));
    }

    #[test]
    fn one_interrupt_for_all_queues_counts() {
        assert_eq!(queue_interrupts(MSIX_SHARED, "virtio3"), Some(1234));
        assert_eq!(queue_interrupts(INTX, "virtio0"), Some(33));
        assert_eq!(queue_interrupts(INTX, "virtio1"), Some(33));
        assert_eq!(queue_interrupts(INTX, "virtio2"), Some(5));
        assert_eq!(queue_interrupts(MMIO_ARM64, "virtio1"), Some(77));
    }

    #[test]
    fn a_device_without_a_line_has_no_count() {
        assert_eq!(queue_interrupts(MSIX_6_18, "virtio3"), None);
        assert_eq!(queue_interrupts(MSIX_6_18, "virtio1"), None);
        assert_eq!(queue_interrupts("", "virtio0"), None);
        assert_eq!(queue_interrupts("\n:::\nvirtio0\n: virtio0", "virtio0"), Some(0));
    }
}
