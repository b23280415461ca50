//! The reasons why ports stop: each reason's text, its usual cause, and the remedy. The guide's tables have the same
//! rows.

/// A part of the reason's text, the cause, and the remedy.
pub(super) const REASONS: &[(&str, &str, &str)] = &[
    (
        "is not in shared memory, or in more than 4 regions",
        "the driver names memory that is not there, or the VM shares its memory page by page",
        "weir qemu-args NAME",
    ),
    ("is not in shared memory", "the guest's memory is not shared", "weir qemu-args NAME"),
    (
        "bytes of its file",
        "the memory file is shorter than the VM was told",
        "make the memory file as long as the guest's memory, and start the VM anew",
    ),
    (
        "is not a memory file",
        "the guest's memory is a device",
        "use memory-backend-memfd, or a file on hugetlbfs or tmpfs",
    ),
    (
        "of which memory_max of this interface allows",
        "the guest has more memory than memory_max",
        "memory_max = \"SIZE\" in [vif.NAME], then weir reload",
    ),
    (
        "all guests together have mapped",
        "the other guests have mapped all memory that is not kept for guests below their share",
        "memory_max = \"SIZE\" in [vif.NAME] of those that map much (weir stats), then weir reload",
    ),
    (
        "shared memory was truncated while in use",
        "somebody shrank the memory file",
        "leave the memory file alone while its VM runs; start the VM anew",
    ),
    (
        "shared memory keeps a worker waiting",
        "the front end takes away large pieces of memory that are in use",
        "turn the VM's balloon and free page reporting off, and start the VM anew",
    ),
    (
        "were not offered",
        "the VM was made for, or migrated from, another back end",
        "start the VM anew",
    ),
    (
        "does not exist, this interface has",
        "the front end has more rings than `queues` allows; two rings are one pair",
        "weir vif set NAME queues=N",
    ),
    (
        "said to go on at slot",
        "the front end's base of a packed ring is none that the ring can have",
        "start the VM anew",
    ),
    (
        "is said to have been taken",
        "the front end's base of a packed ring is none that the ring can have",
        "start the VM anew",
    ),
    (
        "of another byte order",
        "the guest's driver is firmware of virtio 0.9 on a machine of another byte order",
        "boot the VM from a disk; an operating system with a driver of virtio 1 has network",
    ),
    (
        "the VM has a virtual IOMMU",
        "weir has no channel for questions to the VM's virtual IOMMU",
        "take -device intel-iommu or virtio-iommu from the VM, or iommu_platform=on from its device",
    ),
    (
        "cannot change its device's configuration",
        "the guest's driver writes to its device's configuration, which weir says",
        "mac = \"ADDRESS\" or mtu = N in [vif.NAME], then weir reload; start the VM anew",
    ),
    (
        "needs VHOST_USER_PROTOCOL_F_MQ",
        "the front end uses one pair and no control queue",
        "weir vif set NAME queues=1",
    ),
    (
        "is not a power of two",
        "rx_queue_size or tx_queue_size of the VM is no size of a split ring",
        "use 256, 512 or 1024",
    ),
    (
        "has no kick descriptor",
        "the front end wants a ring that is polled, which weir does not serve",
        "turn polling off at the front end",
    ),
    (
        "not supported by this back end",
        "the front end asks for what weir does not offer, as postcopy",
        "turn that off at the VM monitor",
    ),
    (
        "inflight area",
        "the front end's area for ring records is short, or asked for twice",
        "start the VM anew; report the front end's version",
    ),
    (
        "virtio-net header",
        "the guest's offload header contradicts its frame",
        "update the guest's driver",
    ),
    (
        "cannot be called",
        "the front end gave a call descriptor that is no eventfd, pipe or stream socket",
        "report the front end's version",
    ),
    (
        "takes more than 100 us of the worker's time",
        "too many waiters at the call's eventfd",
        "look at what the VM's process does with its descriptors",
    ),
    (
        "calls has been stuck",
        "the front end's pipe or socket blocks weir's thread for it",
        "end the front end's process",
    ),
    (
        "lies in pieces behind",
        "a large ring behind a virtual IOMMU is in pieces that weir cannot map as one",
        "rx_ring = 256 and tx_ring = 256 in [vif.NAME], then weir reload; start the VM anew",
    ),
    ("internal error", "a bug in weir", "report it with the log: journalctl -u weir"),
    ("ring ", "the driver broke the rules of virtio", "update the guest's driver"),
    (
        "the translation of",
        "the front end tells impossible translations of its virtual IOMMU",
        "start the VM anew, with another version of its monitor",
    ),
    (
        "of a translation",
        "the front end tells impossible translations of its virtual IOMMU",
        "start the VM anew, with another version of its monitor",
    ),
    (
        "is not the type of a message about translations",
        "the front end says something else of its virtual IOMMU than a translation, or the end of one",
        "start the VM anew, with another version of its monitor",
    ),
    (
        "translation that has ended is still in use",
        "a worker stands still, or a bug in weir",
        "report it with the log: journalctl -u weir",
    ),
];

/// The cause and the remedy for a reason.
pub(super) fn explained(reason: &str) -> (&'static str, &'static str) {
    let found = REASONS.iter().find(|(part, ..)| reason.contains(part));
    found.map_or(
        (
            "the guest or its front end broke a rule",
            "read the reason, and the log: journalctl -u weir",
        ),
        |(_, what, mend)| (*what, *mend),
    )
}
