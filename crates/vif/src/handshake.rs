//! The vhost-user handshake, from the front end's side, step by step.

use virtio_bindings::virtio_config::{
    VIRTIO_CONFIG_S_ACKNOWLEDGE, VIRTIO_CONFIG_S_DRIVER, VIRTIO_CONFIG_S_DRIVER_OK,
    VIRTIO_CONFIG_S_FEATURES_OK,
};
use weir_ring::{Addresses, RingConfig};
use weir_vhost_user::{
    FrontEnd, FrontEndError, Request, VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS,
    VHOST_USER_PROTOCOL_F_LOG_SHMFD, VHOST_USER_PROTOCOL_F_MQ, VHOST_USER_PROTOCOL_F_MTU,
    VHOST_USER_PROTOCOL_F_REPLY_ACK, VHOST_USER_PROTOCOL_F_STATUS,
    VHOST_USER_PROTOCOL_F_WEIR_CONTAINERS, VringAddr,
};

use crate::counters::Event;
use crate::error::{Step, VifError};
use crate::features::{Features, Options};
use crate::memory::SharedMemory;

/// Protocol features that this front end uses if the back end offers them.
const PROTOCOL_WANTED: u64 = 1 << VHOST_USER_PROTOCOL_F_MQ
    | 1 << VHOST_USER_PROTOCOL_F_LOG_SHMFD
    | 1 << VHOST_USER_PROTOCOL_F_REPLY_ACK
    | 1 << VHOST_USER_PROTOCOL_F_MTU
    | 1 << VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS
    | 1 << VHOST_USER_PROTOCOL_F_STATUS;

/// Device status while the driver sets up (virtio 1.2 §3.1.1).
const STATUS_DRIVER: u32 = VIRTIO_CONFIG_S_ACKNOWLEDGE | VIRTIO_CONFIG_S_DRIVER;

/// A session during set-up.
#[derive(Debug)]
pub(crate) struct Handshake {
    pub(crate) front: FrontEnd,
    pub(crate) features: Features,
    protocol: u64,
}

/// The parameters of one ring.
pub(crate) struct Vring<'v> {
    pub(crate) index: u32,
    pub(crate) config: RingConfig,
    /// Index at which the ring continues.
    pub(crate) base: u32,
    pub(crate) at: Addresses,
    pub(crate) kick: &'v Event,
    pub(crate) call: &'v Event,
    pub(crate) err: &'v Event,
}

/// Adds the step to an error.
pub(crate) fn at<T>(
    request: Request,
    ring: Option<u32>,
    result: Result<T, FrontEndError>,
) -> Result<T, VifError> {
    result.map_err(|source| VifError::Handshake { step: Step { request, ring }, source })
}

impl Handshake {
    /// Negotiates features and takes ownership.
    pub(crate) fn negotiate(front: FrontEnd, options: &Options) -> Result<Self, VifError> {
        let mut handshake = Self { front, features: Features::NONE, protocol: 0 };
        let offered = Features(at(Request::GetFeatures, None, handshake.front.get_features())?);
        if offered.contains(Features::PROTOCOL_FEATURES) {
            handshake.negotiate_protocol(options)?;
        }
        handshake.check_queue_pairs(options)?;
        handshake.features = choose(offered, options)?;
        at(Request::SetOwner, None, handshake.front.set_owner())?;
        handshake.set_status(STATUS_DRIVER)?;
        let features = handshake.features;
        at(Request::SetFeatures, None, handshake.front.set_features(features.0))?;
        handshake.confirm_features()?;
        handshake.set_mtu(options)?;
        Ok(handshake)
    }

    /// Returns true if receive buffers may hold containers.
    pub(crate) fn containers(&self) -> bool {
        self.negotiated(VHOST_USER_PROTOCOL_F_WEIR_CONTAINERS)
    }

    fn negotiated(&self, feature: u32) -> bool {
        self.protocol & (1 << feature) != 0
    }

    fn negotiate_protocol(&mut self, options: &Options) -> Result<(), VifError> {
        let offered = at(Request::GetProtocolFeatures, None, self.front.get_protocol_features())?;
        let containers = u64::from(options.containers) << VHOST_USER_PROTOCOL_F_WEIR_CONTAINERS;
        self.protocol = offered & (PROTOCOL_WANTED | containers);
        at(Request::SetProtocolFeatures, None, self.front.set_protocol_features(self.protocol))
    }

    /// Checks the number of queue pairs. A back end without `MQ` has one pair. Other back ends
    /// count pairs or virtqueues; one that counts virtqueues refuses the first ring beyond its
    /// limit.
    fn check_queue_pairs(&mut self, options: &Options) -> Result<(), VifError> {
        let offered = if self.negotiated(VHOST_USER_PROTOCOL_F_MQ) {
            at(Request::GetQueueNum, None, self.front.get_queue_num())?
        } else {
            1
        };
        if options.queues as u64 > offered {
            let wanted = options.queues;
            return Err(VifError::QueuePairs { wanted, offered });
        }
        Ok(())
    }

    fn set_status(&mut self, status: u32) -> Result<(), VifError> {
        if !self.negotiated(VHOST_USER_PROTOCOL_F_STATUS) {
            return Ok(());
        }
        let result = self.front.set_status(status.into());
        at(Request::SetStatus, None, result)
    }

    /// Sets `FEATURES_OK` and checks that the back end kept it (virtio 1.2 §3.1.1, steps 5 and 6).
    fn confirm_features(&mut self) -> Result<(), VifError> {
        if !self.negotiated(VHOST_USER_PROTOCOL_F_STATUS) {
            return Ok(());
        }
        self.set_status(STATUS_DRIVER | VIRTIO_CONFIG_S_FEATURES_OK)?;
        let status = at(Request::GetStatus, None, self.front.get_status())?;
        if status & u64::from(VIRTIO_CONFIG_S_FEATURES_OK) == 0 {
            let features = self.features;
            return Err(VifError::FeaturesNotOk { features });
        }
        Ok(())
    }

    fn set_mtu(&mut self, options: &Options) -> Result<(), VifError> {
        match options.mtu {
            Some(mtu)
                if self.negotiated(VHOST_USER_PROTOCOL_F_MTU)
                    && self.features.contains(Features::MTU) =>
            {
                at(Request::NetSetMtu, None, self.front.net_set_mtu(mtu.into()))
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn share(&mut self, memory: &SharedMemory) -> Result<(), VifError> {
        let fd = memory.fd();
        if self.negotiated(VHOST_USER_PROTOCOL_F_CONFIGURE_MEM_SLOTS) {
            let slots = at(Request::GetMaxMemSlots, None, self.front.get_max_mem_slots())?;
            if slots > 0 {
                let mut regions = memory.regions.iter();
                let result = regions.try_for_each(|region| self.front.add_mem_reg(*region, fd));
                return at(Request::AddMemReg, None, result);
            }
        }
        let regions: Vec<_> = memory.regions.iter().map(|region| (*region, fd)).collect();
        let result = self.front.set_mem_table(&regions);
        at(Request::SetMemTable, None, result)
    }

    /// Sets up one ring. It starts with its first kick.
    pub(crate) fn set_vring(&mut self, vring: &Vring<'_>) -> Result<(), VifError> {
        use std::os::fd::AsFd;
        let Vring { index, at: to, .. } = *vring;
        let ring = Some(index);
        let addr = VringAddr {
            index,
            flags: 0,
            descriptor: to.descriptor,
            used: to.device,
            available: to.driver,
            log: 0,
        };
        let front = &mut self.front;
        let size = u32::from(vring.config.size);
        let base = vring.base;
        at(Request::SetVringNum, ring, front.set_vring_num(index, size))?;
        at(Request::SetVringBase, ring, front.set_vring_base(index, base))?;
        at(Request::SetVringAddr, ring, front.set_vring_addr(addr))?;
        let fd = Some(vring.err.as_fd());
        at(Request::SetVringErr, ring, front.set_vring_err(index, fd))?;
        let fd = Some(vring.call.as_fd());
        at(Request::SetVringCall, ring, front.set_vring_call(index, fd))?;
        let fd = Some(vring.kick.as_fd());
        at(Request::SetVringKick, ring, front.set_vring_kick(index, fd))
    }

    /// Enables `rings` rings and sets `DRIVER_OK`. On return the back end has handled every
    /// request.
    pub(crate) fn finish(mut self, rings: u32) -> Result<FrontEnd, VifError> {
        // Without protocol features rings are enabled from the start, and this request does not
        // exist.
        if self.features.contains(Features::PROTOCOL_FEATURES) {
            for index in 0..rings {
                let result = self.front.set_vring_enable(index, true);
                at(Request::SetVringEnable, Some(index), result)?;
            }
        }
        let running = STATUS_DRIVER | VIRTIO_CONFIG_S_FEATURES_OK | VIRTIO_CONFIG_S_DRIVER_OK;
        self.set_status(running)?;
        if !self.negotiated(VHOST_USER_PROTOCOL_F_REPLY_ACK) {
            // The reply to any request shows that the back end has handled the requests before it.
            at(Request::GetFeatures, None, self.front.get_features())?;
        }
        Ok(self.front)
    }
}

fn choose(offered: Features, options: &Options) -> Result<Features, VifError> {
    let mut wanted = options.features | options.required | Features::PROTOCOL_FEATURES;
    if options.queues == 1 {
        wanted = wanted - Features::MQ;
    }
    if options.mtu.is_none() {
        wanted = wanted - Features::MTU;
    }
    let mut required = options.required | Features::VERSION_1;
    if options.queues > 1 {
        required = required | Features::MQ;
    }
    let features = ((wanted | required) & offered).consistent();
    let missing = required - features;
    if missing != Features::NONE {
        return Err(VifError::Required { missing });
    }
    Ok(features)
}
