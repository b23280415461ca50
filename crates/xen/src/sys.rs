//! The ioctls of `/dev/xen/gntdev`, `/dev/xen/gntalloc` and `/dev/xen/evtchn`, as in
//! `linux/include/uapi/xen/{gntdev,gntalloc,evtchn}.h`.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::{c_int, c_ulong};
use weir_limits::GRANT_COPY_MAX;

use crate::hypervisor::{CopyPlace, CopySegment, DomainId, EventPort, GrantRef};

/// `_IOC(_IOC_NONE, group, number, sizeof(T))`.
const fn request<T>(group: u8, number: u8) -> c_ulong {
    ((size_of::<T>() as c_ulong) << 16) | ((group as c_ulong) << 8) | number as c_ulong
}

/// The argument of a request.
///
/// # Safety
/// The type must be the one that the kernel reads and writes for `REQUEST`. All memory that it
/// points to must be accessible during the call as the request requires.
unsafe trait Argument: Sized {
    const REQUEST: c_ulong;
}

fn ioctl<A: Argument>(fd: BorrowedFd<'_>, argument: &mut A) -> io::Result<c_int> {
    // SAFETY: the request has this argument (`Argument`), which is borrowed for the call.
    let result =
        unsafe { libc::ioctl(fd.as_raw_fd(), A::REQUEST as _, std::ptr::from_mut(argument)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// `struct ioctl_gntdev_map_grant_ref` with one reference.
#[repr(C)]
struct MapGrantRef {
    count: u32,
    pad: u32,
    index: u64,
    domid: u32,
    reference: u32,
}
// SAFETY: `IOCTL_GNTDEV_MAP_GRANT_REF`; `count` says that one reference follows.
unsafe impl Argument for MapGrantRef {
    const REQUEST: c_ulong = request::<Self>(b'G', 0);
}

/// `struct ioctl_gntdev_unmap_grant_ref`.
#[repr(C)]
struct UnmapGrantRef {
    index: u64,
    count: u32,
    pad: u32,
}
// SAFETY: `IOCTL_GNTDEV_UNMAP_GRANT_REF`.
unsafe impl Argument for UnmapGrantRef {
    const REQUEST: c_ulong = request::<Self>(b'G', 1);
}

/// Enters a grant into the device's table. Returns the offset at which `mmap` maps it.
pub(crate) fn map_grant_ref(
    gntdev: BorrowedFd<'_>,
    domain: DomainId,
    reference: GrantRef,
) -> io::Result<u64> {
    let mut argument =
        MapGrantRef { count: 1, pad: 0, index: 0, domid: domain.0.into(), reference: reference.0 };
    ioctl(gntdev, &mut argument)?;
    Ok(argument.index)
}

/// Takes a grant out of the table; the page must be unmapped before.
pub(crate) fn unmap_grant_ref(gntdev: BorrowedFd<'_>, index: u64) -> io::Result<()> {
    ioctl(gntdev, &mut UnmapGrantRef { index, count: 1, pad: 0 }).map(drop)
}

const GNTCOPY_SOURCE_GREF: u16 = 1;
const GNTCOPY_DEST_GREF: u16 = 2;

/// The union of `struct gntdev_grant_copy_segment`: an address, or a reference, an offset and a
/// domain. One word holds either, in the machine's byte order.
#[repr(C)]
#[derive(Clone, Copy)]
struct Place(u64);

impl Place {
    fn new(place: CopyPlace<'_>) -> Self {
        Self(match place {
            CopyPlace::Local(slice) => slice.address() as u64,
            CopyPlace::Grant(grant) => {
                let [a, b, c, d] = grant.reference.0.to_ne_bytes();
                let [e, f] = grant.offset.to_ne_bytes();
                let [g, h] = grant.domain.0.to_ne_bytes();
                u64::from_ne_bytes([a, b, c, d, e, f, g, h])
            }
        })
    }
}

/// `struct gntdev_grant_copy_segment` of a 64-bit kernel.
#[repr(C)]
#[derive(Clone, Copy)]
struct Segment {
    source: Place,
    dest: Place,
    len: u16,
    flags: u16,
    status: i16,
    pad: u16,
}

impl Segment {
    const NONE: Self =
        Self { source: Place(0), dest: Place(0), len: 0, flags: 0, status: 0, pad: 0 };

    fn new(segment: &CopySegment<'_>) -> Self {
        let flag = |place, flag| if matches!(place, CopyPlace::Grant(_)) { flag } else { 0 };
        Self {
            source: Place::new(segment.from()),
            dest: Place::new(segment.to()),
            len: segment.len(),
            flags: flag(segment.from(), GNTCOPY_SOURCE_GREF)
                | flag(segment.to(), GNTCOPY_DEST_GREF),
            ..Self::NONE
        }
    }
}

/// `struct ioctl_gntdev_grant_copy`.
#[repr(C)]
struct GrantCopy {
    count: u32,
    segments: *mut Segment,
}
// SAFETY: `IOCTL_GNTDEV_GRANT_COPY`; `grant_copy` passes an array of `count` segments. Their local addresses belong
// to slices borrowed for the call: mapped for reading and writing, and accessed as by any other writer of foreign
// memory.
unsafe impl Argument for GrantCopy {
    const REQUEST: c_ulong = request::<Self>(b'G', 8);
}

/// Most segments of a short batch: a small packet, or the fronts of a few packets.
const SHORT_BATCH: usize = 8;

/// Copies up to [`GRANT_COPY_MAX`] segments, and ignores the rest.
pub(crate) fn grant_copy(
    gntdev: BorrowedFd<'_>,
    segments: &mut [CopySegment<'_>],
) -> io::Result<()> {
    // An array for the longest batch would mean 6 KiB to clear.
    if segments.len() <= SHORT_BATCH {
        grant_copy_in::<SHORT_BATCH>(gntdev, segments)
    } else {
        grant_copy_in::<GRANT_COPY_MAX>(gntdev, segments)
    }
}

/// Copies with an array of `ROOM` segments.
fn grant_copy_in<const ROOM: usize>(
    gntdev: BorrowedFd<'_>,
    segments: &mut [CopySegment<'_>],
) -> io::Result<()> {
    let mut raw = [Segment::NONE; ROOM];
    let mut count = 0;
    for (raw, segment) in raw.iter_mut().zip(&*segments) {
        *raw = Segment::new(segment);
        count += 1;
    }
    ioctl(gntdev, &mut GrantCopy { count, segments: raw.as_mut_ptr() })?;
    for (raw, segment) in raw.iter().zip(segments) {
        segment.finish(raw.status);
    }
    Ok(())
}

const GNTALLOC_FLAG_WRITABLE: u16 = 1;

/// `struct ioctl_gntalloc_alloc_gref` with one reference.
#[repr(C)]
struct AllocGref {
    domid: u16,
    flags: u16,
    count: u32,
    index: u64,
    reference: u32,
}
// SAFETY: `IOCTL_GNTALLOC_ALLOC_GREF`; `count` says that there is room for one reference.
unsafe impl Argument for AllocGref {
    const REQUEST: c_ulong = request::<Self>(b'G', 5);
}

/// Makes a page that `domain` may map. Returns its reference, and the offset at which `mmap` maps
/// it.
pub(crate) fn alloc_gref(
    gntalloc: BorrowedFd<'_>,
    domain: DomainId,
    read_only: bool,
) -> io::Result<(GrantRef, u64)> {
    let flags = if read_only { 0 } else { GNTALLOC_FLAG_WRITABLE };
    let mut argument = AllocGref { domid: domain.0, flags, count: 1, index: 0, reference: 0 };
    ioctl(gntalloc, &mut argument)?;
    Ok((GrantRef(argument.reference), argument.index))
}

/// `struct ioctl_gntalloc_dealloc_gref`.
#[repr(C)]
struct DeallocGref {
    index: u64,
    count: u32,
}
// SAFETY: `IOCTL_GNTALLOC_DEALLOC_GREF`.
unsafe impl Argument for DeallocGref {
    const REQUEST: c_ulong = request::<Self>(b'G', 6);
}

/// Gives the page up: it is freed when it is no longer mapped.
pub(crate) fn dealloc_gref(gntalloc: BorrowedFd<'_>, index: u64) -> io::Result<()> {
    ioctl(gntalloc, &mut DeallocGref { index, count: 1 }).map(drop)
}

/// `struct ioctl_evtchn_bind_unbound_port`.
#[repr(C)]
struct BindUnboundPort {
    remote_domain: u32,
}
// SAFETY: `IOCTL_EVTCHN_BIND_UNBOUND_PORT`.
unsafe impl Argument for BindUnboundPort {
    const REQUEST: c_ulong = request::<Self>(b'E', 2);
}

/// Makes a port that `domain` may bind. Returns its number.
pub(crate) fn bind_unbound_port(evtchn: BorrowedFd<'_>, domain: DomainId) -> io::Result<EventPort> {
    let port = ioctl(evtchn, &mut BindUnboundPort { remote_domain: domain.0.into() })?;
    u32::try_from(port).map(EventPort).map_err(io::Error::other)
}

/// `struct ioctl_evtchn_bind_interdomain`.
#[repr(C)]
struct BindInterdomain {
    remote_domain: u32,
    remote_port: u32,
}
// SAFETY: `IOCTL_EVTCHN_BIND_INTERDOMAIN`.
unsafe impl Argument for BindInterdomain {
    const REQUEST: c_ulong = request::<Self>(b'E', 1);
}

/// Binds a new port to a domain's. Returns its number.
pub(crate) fn bind_interdomain(
    evtchn: BorrowedFd<'_>,
    domain: DomainId,
    remote: EventPort,
) -> io::Result<EventPort> {
    let mut argument = BindInterdomain { remote_domain: domain.0.into(), remote_port: remote.0 };
    let port = ioctl(evtchn, &mut argument)?;
    u32::try_from(port).map(EventPort).map_err(io::Error::other)
}

/// `struct ioctl_evtchn_notify`.
#[repr(C)]
struct Notify {
    port: u32,
}
// SAFETY: `IOCTL_EVTCHN_NOTIFY`.
unsafe impl Argument for Notify {
    const REQUEST: c_ulong = request::<Self>(b'E', 4);
}

/// Sends an event to the other end of `port`.
pub(crate) fn notify(evtchn: BorrowedFd<'_>, port: EventPort) -> io::Result<()> {
    ioctl(evtchn, &mut Notify { port: port.0 }).map(drop)
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use weir_guestmem::MappedPages;

    use super::*;
    use crate::hypervisor::Grant;

    /// Compares sizes and offsets with those of a C compiler for the kernel's headers, on a 64-bit
    /// machine.
    #[test]
    fn structs_and_requests_are_those_of_the_kernel() {
        assert_eq!(MapGrantRef::REQUEST, 0x18_4700);
        assert_eq!(UnmapGrantRef::REQUEST, 0x10_4701);
        assert_eq!(GrantCopy::REQUEST, 0x10_4708);
        assert_eq!(AllocGref::REQUEST, 0x18_4705);
        assert_eq!(DeallocGref::REQUEST, 0x10_4706);
        assert_eq!(BindInterdomain::REQUEST, 0x8_4501);
        assert_eq!(BindUnboundPort::REQUEST, 0x4_4502);
        assert_eq!(Notify::REQUEST, 0x4_4504);
        assert_eq!((size_of::<Segment>(), offset_of!(Segment, dest)), (24, 8));
        assert_eq!((offset_of!(Segment, len), offset_of!(Segment, flags)), (16, 18));
        assert_eq!((offset_of!(Segment, status), offset_of!(GrantCopy, segments)), (20, 8));
        assert_eq!((offset_of!(MapGrantRef, index), offset_of!(MapGrantRef, domid)), (8, 16));
        assert_eq!((offset_of!(AllocGref, index), offset_of!(AllocGref, reference)), (8, 16));
    }

    #[test]
    fn a_segment_says_which_side_is_a_grant_and_where_it_is() {
        let pages = MappedPages::new(4096).unwrap();
        let grant =
            Grant { domain: DomainId(0x0708), reference: GrantRef(0x0102_0304), offset: 0x0506 };
        let local = pages.slice(16, 100).unwrap();
        let segment = Segment::new(&CopySegment::from_grant(grant, local).unwrap());
        let foreign = segment.source.0.to_ne_bytes();
        assert_eq!(foreign[..4], 0x0102_0304_u32.to_ne_bytes());
        assert_eq!(foreign[4..6], 0x0506_u16.to_ne_bytes());
        assert_eq!(foreign[6..], 0x0708_u16.to_ne_bytes());
        assert_eq!(segment.dest.0, (pages.address() + 16) as u64);
        assert_eq!((segment.len, segment.flags), (100, GNTCOPY_SOURCE_GREF));
        let segment = Segment::new(&CopySegment::to_grant(local, grant).unwrap());
        assert_eq!(segment.dest.0.to_ne_bytes(), foreign);
        assert_eq!(segment.flags, GNTCOPY_DEST_GREF);
    }
}
