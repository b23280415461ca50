//! Answers all vifs of this domain as a back end that moves no packet, to show the real behaviour
//! of xenstore, the grant device and the event channel device. It needs Xen, and ends after the
//! number of events in its argument.
//!
//! Prints a line for each `offer`, `connect`, `event` and `disconnect`.

use std::collections::BTreeMap;
use std::error::Error;
use std::io;

use rustix::event::{PollFd, PollFlags, poll};
use std::os::fd::AsFd;

use weir_guestmem::MappedPages;
use weir_xen::store::{Client, StoreError};
use weir_xen::vif::{FrontKeys, Offer, RingKeys, Serve, VifId, VifKeys, Vifs};
use weir_xen::{
    CopySegment, CopyStatus, DomainId, EventChannel, Grant, GrantMap, GrantRef, Hypervisor, Xen,
};

/// A mapped ring, and its channel.
struct Ring {
    name: &'static str,
    map: GrantMap,
    grant: Grant,
    channel: Box<dyn EventChannel>,
}

struct Back {
    xen: Xen,
    page: MappedPages,
    rings: BTreeMap<VifId, Vec<Ring>>,
}

impl Back {
    fn ring(&self, name: &'static str, domain: DomainId, keys: RingKeys) -> io::Result<Ring> {
        let grant = Grant { domain, reference: keys.reference, offset: 0 };
        let map = self.xen.map(domain, keys.reference)?;
        let channel = self.xen.bind(domain, keys.port)?;
        let ring = Ring { name, map, grant, channel };
        self.compare(&ring)?;
        Ok(ring)
    }

    /// Asserts that a grant copy gives the same page as the mapping, and that a bad reference harms
    /// only its own segment.
    fn compare(&self, ring: &Ring) -> io::Result<()> {
        let bad = Grant { reference: GrantRef(u32::MAX), ..ring.grant };
        let place = |at| self.page.slice(at, 4096).ok_or(io::ErrorKind::InvalidInput);
        let mut batch = [
            CopySegment::from_grant(bad, place(0)?).ok_or(io::ErrorKind::InvalidInput)?,
            CopySegment::from_grant(ring.grant, place(4096)?).ok_or(io::ErrorKind::InvalidInput)?,
        ];
        self.xen.copy(&mut batch)?;
        let [bad, good] = batch.map(|segment| segment.status());
        let copied = place(4096)?.read_array::<64>();
        let mapped = ring.map.pages().slice(0, 64).and_then(|slice| slice.read_array::<64>());
        let same = copied == mapped && good == CopyStatus::Done;
        println!("copy {} same={same} bad={bad:?}", ring.name);
        Ok(())
    }
}

impl Serve for Back {
    fn offer(&mut self, vif: VifId, keys: &VifKeys) -> Option<Offer> {
        println!("offer {vif} {keys:?}");
        Some(Offer {
            queues_max: 2,
            sg: true,
            gso_tcpv4: true,
            gso_tcpv6: true,
            ipv6_csum_offload: true,
            split_event_channels: true,
            multicast_control: true,
            ctrl_ring: false,
        })
    }

    fn connect(&mut self, vif: VifId, keys: &VifKeys, front: &FrontKeys) -> Result<(), String> {
        let refused = self.xen.map(keys.domain, GrantRef(u32::MAX)).err();
        println!("connect {vif} {front:?}; a grant that is none: {refused:?}");
        let queues = front.queues.iter();
        let rings = queues.flat_map(|queue| [("tx", queue.tx), ("rx", queue.rx)]);
        let rings: io::Result<Vec<Ring>> =
            rings.map(|(name, ring)| self.ring(name, keys.domain, ring)).collect();
        self.rings.insert(vif, rings.map_err(|error| error.to_string())?);
        Ok(())
    }

    fn disconnect(&mut self, vif: VifId) {
        self.rings.remove(&vif);
        println!("disconnect {vif}");
    }

    fn forget(&mut self, vif: VifId) {
        println!("forget {vif}");
    }

    fn closed(&mut self, vif: VifId, reason: &str) {
        println!("closed {vif}: {reason}");
    }

    fn refused(&mut self, error: &StoreError) {
        println!("refused: {error}");
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut events = std::env::args().nth(1).map_or(Ok(u64::MAX), |count| count.parse())?;
    let mut back =
        Back { xen: Xen::open()?, page: MappedPages::new(8192)?, rings: BTreeMap::new() };
    let mut vifs = Vifs::new(Client::open()?)?;
    while events > 0 {
        while vifs.poll(&mut back)? {}
        let rings: Vec<&Ring> = back.rings.values().flatten().collect();
        let mut fds = vec![PollFd::from_borrowed_fd(vifs.client().as_fd(), PollFlags::IN)];
        let channels = rings.iter().map(|ring| ring.channel.fd());
        fds.extend(channels.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        poll(&mut fds, None)?;
        for ring in &rings {
            if ring.channel.acknowledge()? {
                ring.channel.notify()?;
                // `struct netif_tx_sring` and `netif_rx_sring` begin with `req_prod`.
                println!("event {} req_prod={}", ring.name, ring.map.pages().load_acquire(0));
                events -= 1;
            }
        }
        let store = fds.first().is_some_and(|fd| fd.revents().contains(PollFlags::IN));
        drop(fds);
        if store {
            vifs.receive()?;
        }
    }
    Ok(())
}
