//! The keys of both ends (`xen/include/public/io/netif.h`), each read once and checked.

use weir_limits::QUEUE_PAIRS_MAX;

use crate::hypervisor::{DomainId, EventPort, GrantRef};

/// Why keys are of no use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A key that must be there is not.
    #[error("{0} is missing")]
    Missing(String),
    /// It does not have the form that it should.
    #[error("{key} is {value:?}, not {wanted}")]
    Malformed {
        /// Relative to its end's directory.
        key: String,
        /// What is there, shortened.
        value: String,
        /// What should be.
        wanted: &'static str,
    },
    /// More queues than were offered, or none.
    #[error("multi-queue-num-queues is {wanted}, not 1 to {offered}")]
    Queues {
        /// So many.
        wanted: u32,
        /// `multi-queue-max-queues`.
        offered: u32,
    },
    /// The front end wants pages to be flipped instead of copied into, which nobody does since Linux 2.6.
    #[error("request-rx-copy is not 1: the front end is too old")]
    NoRxCopy,
}

/// Longest value that an error shows (characters).
const SHOWN_MAX: usize = 40;

fn malformed(key: &str, value: &[u8], wanted: &'static str) -> KeyError {
    let value = String::from_utf8_lossy(value).chars().take(SHOWN_MAX).collect();
    KeyError::Malformed { key: key.to_owned(), value, wanted }
}

/// Reads a key, relative to its end's directory, once.
type Get<'g, E> = dyn FnMut(&str) -> Result<Option<Vec<u8>>, E> + 'g;

/// A number in decimal digits, without sign or space.
fn number<E: From<KeyError>>(get: &mut Get<'_, E>, key: &str) -> Result<Option<u32>, E> {
    let Some(value) = get(key)? else { return Ok(None) };
    let parsed = std::str::from_utf8(&value)
        .ok()
        .filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))
        .and_then(|text| text.parse().ok());
    parsed.map(Some).ok_or_else(|| malformed(key, &value, "a number of 32 bits").into())
}

fn needed<E: From<KeyError>>(get: &mut Get<'_, E>, key: &str) -> Result<u32, E> {
    number(get, key)?.ok_or_else(|| KeyError::Missing(key.to_owned()).into())
}

/// A switch: off where it is missing or 0.
fn flag<E: From<KeyError>>(get: &mut Get<'_, E>, key: &str) -> Result<bool, E> {
    Ok(number(get, key)?.unwrap_or(0) != 0)
}

fn text<E: From<KeyError>>(get: &mut Get<'_, E>, key: &str) -> Result<Option<String>, E> {
    let Some(value) = get(key)? else { return Ok(None) };
    String::from_utf8(value)
        .map(Some)
        .map_err(|error| malformed(key, error.as_bytes(), "text").into())
}

/// What the toolstack wrote into the back end's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VifKeys {
    /// The front end's directory.
    pub frontend: String,
    /// The guest.
    pub domain: DomainId,
    /// Number of the vif in the guest.
    pub handle: u32,
    /// The guest's address.
    pub mac: [u8; 6],
    /// The bridge that the guest's configuration names.
    pub bridge: Option<String>,
}

impl VifKeys {
    /// Reads them by `get`, which is given names in the back end's directory.
    ///
    /// # Errors
    /// That of `get`, or what is wrong with a key.
    pub fn read<E: From<KeyError>>(
        mut get: impl FnMut(&str) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Self, E> {
        let get: &mut Get<'_, E> = &mut get;
        let missing = |key: &str| KeyError::Missing(key.to_owned());
        let domain = needed(get, "frontend-id")?;
        let domain = u16::try_from(domain).map_err(|_| {
            malformed("frontend-id", domain.to_string().as_bytes(), "a domain's number")
        })?;
        let mac = text(get, "mac")?.ok_or_else(|| missing("mac"))?;
        Ok(Self {
            frontend: text(get, "frontend")?.ok_or_else(|| missing("frontend"))?,
            domain: DomainId(domain),
            handle: needed(get, "handle")?,
            mac: parse_mac(&mac).ok_or_else(|| malformed("mac", mac.as_bytes(), "an address"))?,
            bridge: text(get, "bridge")?.filter(|bridge| !bridge.is_empty()),
        })
    }
}

fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        let part = parts.next()?;
        let digits = part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_hexdigit());
        *byte = u8::from_str_radix(part, 16).ok().filter(|_| digits)?;
    }
    parts.next().is_none().then_some(mac)
}

/// What the back end says it can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Queue pairs, 1 to [`QUEUE_PAIRS_MAX`].
    pub queues_max: u32,
    /// A packet may come from the guest in several requests, and go to it in several.
    pub sg: bool,
    /// The guest may send TCP segments for weir to cut; so for IPv6 with `gso_tcpv6`.
    pub gso_tcpv4: bool,
    /// See `gso_tcpv4`.
    pub gso_tcpv6: bool,
    /// The guest may leave checksums of IPv6 packets to weir. With IPv4 it always may.
    pub ipv6_csum_offload: bool,
    /// Channels of their own for the two rings of a queue.
    pub split_event_channels: bool,
    /// The guest may say which multicast addresses it wants.
    pub multicast_control: bool,
    /// The guest may choose hash and table by a control ring.
    pub ctrl_ring: bool,
}

impl Offer {
    /// The keys of the back end's directory that say so, in which they are to be written together.
    pub fn keys(&self) -> [(&'static str, u32); 10] {
        [
            ("feature-rx-copy", 1),
            ("feature-rx-flip", 0),
            ("feature-sg", self.sg.into()),
            ("feature-gso-tcpv4", self.gso_tcpv4.into()),
            ("feature-gso-tcpv6", self.gso_tcpv6.into()),
            ("feature-ipv6-csum-offload", self.ipv6_csum_offload.into()),
            ("feature-multicast-control", self.multicast_control.into()),
            ("feature-split-event-channels", self.split_event_channels.into()),
            ("feature-ctrl-ring", self.ctrl_ring.into()),
            ("multi-queue-max-queues", self.queues_max),
        ]
    }
}

/// Where a shared ring is, and the channel of its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingKeys {
    /// Its page.
    pub reference: GrantRef,
    /// The guest's end of its channel.
    pub port: EventPort,
}

/// One queue of the front end. Both ports are the same where channels are not split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueKeys {
    /// What the guest sends.
    pub tx: RingKeys,
    /// What it receives.
    pub rx: RingKeys,
}

/// What the front end asks for: the guest's word, whose form is checked here. Whether references and
/// ports exist, Xen says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontKeys {
    /// 1 to [`QUEUE_PAIRS_MAX`] queues.
    pub queues: Vec<QueueKeys>,
    /// The control ring, if it has one.
    pub ctrl: Option<RingKeys>,
    /// A packet may go to it in several buffers; else it takes one page.
    pub sg: bool,
    /// It takes uncut TCP segments; so for IPv6 with `gso_tcpv6`.
    pub gso_tcpv4: bool,
    /// See `gso_tcpv4`.
    pub gso_tcpv6: bool,
    /// It takes packets without checksum: IPv4, unless it says no; IPv6, if it says so.
    pub ip_csum_offload: bool,
    /// See `ip_csum_offload`.
    pub ipv6_csum_offload: bool,
    /// It tells when it has new buffers.
    pub rx_notify: bool,
    /// It says which multicast addresses it wants; else it gets all.
    pub multicast_control: bool,
}

impl FrontKeys {
    /// Reads them by `get`, which is given names in the front end's directory, each once. Keys of what was
    /// not offered are passed over.
    ///
    /// # Errors
    /// That of `get`, or what is wrong with a key.
    pub fn read<E: From<KeyError>>(
        offer: &Offer,
        mut get: impl FnMut(&str) -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Self, E> {
        let get: &mut Get<'_, E> = &mut get;
        if !flag(get, "request-rx-copy")? {
            return Err(KeyError::NoRxCopy.into());
        }
        let count = number(get, "multi-queue-num-queues")?.unwrap_or(1);
        let queues_max = offer.queues_max.min(u32::try_from(QUEUE_PAIRS_MAX).unwrap_or(u32::MAX));
        if count == 0 || count > queues_max {
            return Err(KeyError::Queues { wanted: count, offered: queues_max }.into());
        }
        let queues = if count == 1 {
            vec![queue(get, "")?]
        } else {
            (0..count).map(|n| queue(get, &format!("queue-{n}/"))).collect::<Result<_, E>>()?
        };
        let ctrl = if offer.ctrl_ring {
            match number(get, "ctrl-ring-ref")? {
                None => None,
                Some(reference) => Some(RingKeys {
                    reference: GrantRef(reference),
                    port: EventPort(needed(get, "event-channel-ctrl")?),
                }),
            }
        } else {
            None
        };
        Ok(Self {
            queues,
            ctrl,
            sg: flag(get, "feature-sg")?,
            gso_tcpv4: flag(get, "feature-gso-tcpv4")?,
            gso_tcpv6: flag(get, "feature-gso-tcpv6")?,
            ip_csum_offload: !flag(get, "feature-no-csum-offload")?,
            ipv6_csum_offload: flag(get, "feature-ipv6-csum-offload")?,
            rx_notify: flag(get, "feature-rx-notify")?,
            multicast_control: offer.multicast_control && flag(get, "request-multicast-control")?,
        })
    }
}

/// A queue's keys; with several queues each has a directory of its own, `prefix`.
fn queue<E: From<KeyError>>(get: &mut Get<'_, E>, prefix: &str) -> Result<QueueKeys, E> {
    let tx_ring = needed(get, &format!("{prefix}tx-ring-ref"))?;
    let rx_ring = needed(get, &format!("{prefix}rx-ring-ref"))?;
    let (tx_port, rx_port) = match number(get, &format!("{prefix}event-channel-tx"))? {
        Some(tx) => (tx, needed(get, &format!("{prefix}event-channel-rx"))?),
        None => {
            let both = needed(get, &format!("{prefix}event-channel"))?;
            (both, both)
        }
    };
    let ring = |reference, port| RingKeys { reference: GrantRef(reference), port: EventPort(port) };
    Ok(QueueKeys { tx: ring(tx_ring, tx_port), rx: ring(rx_ring, rx_port) })
}
