//! The rules of the simulated Xen, each of which is Xen's or xenstored's.

use weir_guestmem::MappedPages;

use super::*;
use crate::hypervisor::{CopyStatus, Grant};
use crate::store::{ErrorName, Permission, StoreError};

const GUEST: DomainId = DomainId(7);
const OTHER: DomainId = DomainId(8);

fn host() -> (Host, Guest) {
    let host = Host::new();
    let guest = host.guest(GUEST, 4).unwrap();
    (host, guest)
}

#[test]
fn a_grant_is_mapped_by_whom_it_is_for_and_only_while_it_stands() {
    let (host, guest) = host();
    let reference = guest.grant(2, DOM0, false);
    let map = host.map(GUEST, reference).unwrap();
    map.pages().store_release(8, 42);
    assert_eq!(guest.memory().load_acquire(2 * 4096 + 8), 42);
    assert_eq!(map.pages().len(), 4096);

    let refused = [
        (GUEST, guest.grant(1, OTHER, false), "for another domain"),
        (GUEST, guest.grant(1, DOM0, true), "read-only"),
        (GUEST, GrantRef(0), "never granted"),
        (OTHER, reference, "of another domain"),
    ];
    for (domain, reference, why) in refused {
        let error = host.map(domain, reference).err().unwrap_or_else(|| panic!("{why}"));
        assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{why}");
    }
    assert_eq!(host.mapped(), 1);

    assert!(!guest.revoke(reference), "mapped");
    drop(map);
    assert_eq!(host.mapped(), 0);
    assert!(guest.revoke(reference));
    assert!(host.map(GUEST, reference).is_err());
}

#[test]
fn a_mapped_page_outlives_its_guest() {
    let (host, guest) = host();
    let map = host.map(GUEST, guest.grant(0, DOM0, false)).unwrap();
    guest.memory().store_release(0, 5);
    guest.destroy();
    assert_eq!((map.pages().load_acquire(0), host.mapped()), (5, 1));
    drop(map);
    assert_eq!(host.mapped(), 0);
}

#[test]
fn a_batch_copies_both_ways_and_each_segment_says_how_it_went() {
    let (host, guest) = host();
    let local = MappedPages::new(4096).unwrap();
    local.slice(0, 4).unwrap().write(b"weir");
    guest.memory().slice(4096 + 100, 5).unwrap().write(b"guest");
    let at = |reference, offset| Grant { domain: GUEST, reference, offset };
    let writable = guest.grant(0, DOM0, false);
    let read_only = guest.grant(1, DOM0, true);
    let slice = |at, len| local.slice(at, len).unwrap();
    let mut segments = [
        CopySegment::to_grant(slice(0, 4), at(writable, 4092)).unwrap(),
        CopySegment::from_grant(at(read_only, 100), slice(16, 5)).unwrap(),
        CopySegment::to_grant(slice(0, 4), at(read_only, 0)).unwrap(),
        CopySegment::from_grant(at(GrantRef(999), 0), slice(32, 4)).unwrap(),
        CopySegment::from_grant(
            Grant { domain: OTHER, reference: writable, offset: 0 },
            slice(32, 4),
        )
        .unwrap(),
    ];
    assert_eq!(segments[0].status(), CopyStatus::Waits);
    host.copy(&mut segments).unwrap();
    let expected = [
        CopyStatus::Done,
        CopyStatus::Done,
        CopyStatus::Refused(-8),
        CopyStatus::Refused(-3),
        CopyStatus::Refused(-2),
    ];
    assert_eq!(segments.map(|segment| segment.status()), expected);
    assert_eq!(guest.memory().slice(4092, 4).unwrap().read_array(), Some(*b"weir"));
    assert_eq!(slice(16, 5).read_array(), Some(*b"guest"));
    assert_eq!(slice(32, 4).read_array(), Some([0; 4]));
    assert_eq!(host.mapped(), 0);
}

#[test]
fn a_batch_copies_from_guest_to_guest_by_the_rules_of_both_ends() {
    let (host, guest) = host();
    let other = host.guest(OTHER, 2).unwrap();
    guest.memory().slice(200, 5).unwrap().write(b"guest");
    let from = Grant { domain: GUEST, reference: guest.grant(0, DOM0, true), offset: 200 };
    let to = Grant { domain: OTHER, reference: other.grant(1, DOM0, false), offset: 4091 };
    let read_only = Grant { reference: other.grant(0, DOM0, true), ..to };
    let for_another = Grant { reference: guest.grant(0, OTHER, true), ..from };
    let none = |grant| Grant { reference: GrantRef(999), ..grant };
    let gone = Grant { domain: DomainId(77), ..from };
    let pairs = [
        (from, to),
        (from, read_only),
        (for_another, to),
        (none(from), to),
        (from, none(to)),
        (gone, to),
    ];
    let mut segments = pairs.map(|(from, to)| CopySegment::between_grants(from, to, 5).unwrap());
    host.copy(&mut segments).unwrap();
    let expected = [0, -8, -8, -3, -3, -2].map(|status| match status {
        0 => CopyStatus::Done,
        refused => CopyStatus::Refused(refused),
    });
    assert_eq!(segments.map(|segment| segment.status()), expected);
    assert_eq!(other.memory().slice(4096 + 4091, 5).unwrap().read_array(), Some(*b"guest"));
    let copied = Copied { between_grants: 5, calls: 1, ..Copied::default() };
    assert_eq!(host.copied(), copied);
    assert!(CopySegment::between_grants(from, to, 6).is_none());
    assert!(CopySegment::between_grants(to, from, 6).is_none());
}

#[test]
fn a_segment_that_leaves_its_page_is_never_made() {
    let local = MappedPages::new(8192).unwrap();
    let grant = |offset| Grant { domain: GUEST, reference: GrantRef(8), offset };
    let slice = |len| local.slice(0, len).unwrap();
    assert!(CopySegment::from_grant(grant(0), slice(4096)).is_some());
    assert!(CopySegment::from_grant(grant(1), slice(4096)).is_none());
    assert!(CopySegment::to_grant(slice(1), grant(4096)).is_none());
    assert!(CopySegment::to_grant(slice(0), grant(u16::MAX)).is_none());
    assert!(CopySegment::to_grant(slice(8192), grant(0)).is_none());
}

#[test]
fn a_port_is_bound_once_by_the_domain_it_was_made_for() {
    let (host, guest) = host();
    let (port, end) = guest.allocate(DOM0).unwrap();
    let (for_other, _end) = guest.allocate(OTHER).unwrap();
    assert!(host.bind(GUEST, for_other).is_err());
    assert!(host.bind(OTHER, port).is_err());
    assert!(host.bind(GUEST, EventPort(99)).is_err());
    let channel = host.bind(GUEST, port).unwrap();
    assert!(host.bind(GUEST, port).is_err(), "bound");
    assert!(channel.acknowledge().unwrap(), "one comes with binding");
    assert!(!channel.acknowledge().unwrap());

    end.notify().unwrap();
    end.notify().unwrap();
    assert!(channel.acknowledge().unwrap() && !channel.acknowledge().unwrap());
    channel.notify().unwrap();
    assert!(end.acknowledge().unwrap());

    assert_eq!(host.bound(), 1);
    drop(channel);
    assert_eq!(host.bound(), 0);
    end.notify().unwrap();
    let channel = host.bind(GUEST, port).unwrap();
    guest.destroy();
    channel.notify().unwrap();
    assert!(host.bind(GUEST, port).is_err());
}

#[test]
fn an_end_whose_guests_port_is_gone_leaves_the_next_one_of_that_number_alone() {
    let (host, guest) = host();
    let (port, end) = guest.allocate(DOM0).unwrap();
    let before = host.bind(GUEST, port).unwrap();
    drop(end);
    let (next, end) = guest.allocate(DOM0).unwrap();
    assert_eq!(next, port);
    let channel = host.bind(GUEST, next).unwrap();
    assert!(channel.acknowledge().unwrap());
    drop(before);
    end.notify().unwrap();
    assert!(channel.acknowledge().unwrap(), "it is bound as before");
}

#[test]
fn a_guest_writes_and_reads_what_it_may() {
    let (host, guest) = host();
    host.attach(GUEST, 0, "00:16:3e:00:00:01", "br0");
    let mut client = guest.client();
    let refused = |result: Result<(), StoreError>| result.unwrap_err().name();

    client.write("device/vif/0/state", b"4").unwrap();
    client.write("device/vif/0/queue-1/tx-ring-ref", b"8").unwrap();
    assert_eq!(client.read("device/vif/0/queue-1/tx-ring-ref").unwrap().unwrap(), b"8");
    let back = "/local/domain/0/backend/vif/7/0";
    assert_eq!(client.read(&format!("{back}/state")).unwrap().unwrap(), b"1");
    let own = refused(client.write(&format!("{back}/mac"), b"00:16:3e:00:00:02"));
    assert_eq!(own, Some(ErrorName::Eacces));
    assert_eq!(refused(client.write("/local/domain/8/x", b"")), Some(ErrorName::Eacces));
    let everybody = [Permission { domain: 7, read: true, write: true }];
    let grab = refused(client.set_permissions(back, &everybody));
    assert_eq!(grab, Some(ErrorName::Eacces));

    client.set_permissions("device/vif/0/state", &everybody).unwrap();
    assert_eq!(client.permissions("device/vif/0/state").unwrap(), everybody);
    let names = host.client().directory("/local/domain/7/device/vif/0").unwrap();
    assert_eq!(names, ["backend", "backend-id", "handle", "mac", "queue-1", "state"]);
    client.rm("device/vif/0/queue-1").unwrap();
    assert_eq!(client.read("device/vif/0/queue-1/tx-ring-ref").unwrap(), None);
    assert!(client.directory("device/vif/5").unwrap().is_empty());
}

#[test]
fn a_transaction_is_whole_alone_and_conflicts_with_other_writes() {
    let (host, _guest) = host();
    let mut client = host.client();
    let mut other = host.client();
    let mut runs = 0;
    client
        .transaction(|transaction| {
            runs += 1;
            let seen = transaction.read("/a")?;
            if runs == 1 {
                other.write("/a", b"theirs")?;
                assert_eq!(transaction.read("/a")?, None, "a transaction sees one moment");
            } else {
                assert_eq!(seen.as_deref(), Some(&b"theirs"[..]));
            }
            transaction.write("/b", b"mine")?;
            assert_eq!(other.read("/b")?, None, "not before its end");
            Ok(())
        })
        .unwrap();
    assert_eq!((runs, other.read("/b").unwrap().unwrap()), (2, b"mine".to_vec()));
    let dropped = client.transaction(|transaction| {
        transaction.write("/c", b"")?;
        Err::<(), _>(StoreError::TooManyTries)
    });
    assert!(dropped.is_err() && other.read("/c").unwrap().is_none());
}

#[test]
fn a_watch_fires_at_once_and_for_what_is_at_or_below_it() {
    let (host, _guest) = host();
    let mut client = host.client();
    let mut other = host.client();
    client.mkdir("backend/vif").unwrap();
    client.watch("backend/vif", "root").unwrap();
    assert_eq!(client.next_fired().unwrap(), "root");
    assert!(client.watch("backend/vif", "root").is_err(), "twice the same");

    let fired = |client: &mut Client<Connection>| {
        // Any request delivers pending events.
        client.read("/none").unwrap();
        std::iter::from_fn(|| client.next_fired()).collect::<Vec<_>>()
    };
    client.watch("backend/vif/1/0/state", "state").unwrap();
    assert_eq!(fired(&mut client), ["state"]);
    other.write("backend/vif/1/0/state", b"1").unwrap();
    assert_eq!(fired(&mut client), ["root", "state"]);
    other.write("backend/vifs", b"").unwrap();
    assert!(fired(&mut client).is_empty());
    other.rm("backend/vif/1").unwrap();
    assert_eq!(fired(&mut client), ["root", "state"], "a node goes with those above it");
    client.unwatch("backend/vif", "root").unwrap();
    other.write("backend/vif/2", b"").unwrap();
    assert!(fired(&mut client).is_empty());
}

#[test]
fn a_connection_is_readable_when_there_is_an_event() {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::os::fd::AsFd;

    let (host, _guest) = host();
    let mut client = host.client();
    client.watch("/a", "a").unwrap();
    client.next_fired().unwrap();
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let readable = |client: &Client<Connection>| {
        poll(&mut [PollFd::from_borrowed_fd(client.as_fd(), PollFlags::IN)], Some(&now)).unwrap()
    };
    assert_eq!(readable(&client), 0);
    host.client().write("/a", b"").unwrap();
    assert_eq!(readable(&client), 1);
    // Creation and write: two events.
    client.receive().unwrap();
    client.receive().unwrap();
    assert_eq!((readable(&client), client.next_fired().unwrap()), (0, "a".to_owned()));
}
