//! The keys of both ends (`xen/include/public/io/netif.h`), each read once and checked.

use weir_limits::QUEUE_PAIRS_MAX;

use crate::hypervisor::{DomainId, EventPort, GrantRef};

/// Error in the keys.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// A required key is missing.
    #[error("{0} is missing")]
    Missing(String),
    /// A key is malformed.
    #[error("{key} is {value:?}, not {wanted}")]
    Malformed {
        /// The key, relative to its end's directory.
        key: String,
        /// The present value, shortened.
        value: String,
        /// The form required.
        wanted: &'static str,
    },
    /// The front end wants no queues, or more than offered.
    #[error("multi-queue-num-queues is {wanted}, not 1 to {offered}")]
    Queues {
        /// Number of queues wanted.
        wanted: u32,
        /// `multi-queue-max-queues`.
        offered: u32,
    },
    /// The front end wants pages to be flipped instead of copied into. No back end has done so
    /// since Linux 2.6.
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

/// Reads a number in decimal digits, without sign or space.
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

/// Reads a switch: off if missing or 0.
fn flag<E: From<KeyError>>(get: &mut Get<'_, E>, key: &str) -> Result<bool, E> {
    Ok(number(get, key)?.unwrap_or(0) != 0)
}

fn text<E: From<KeyError>>(get: &mut Get<'_, E>, key: &str) -> Result<Option<String>, E> {
    let Some(value) = get(key)? else { return Ok(None) };
    String::from_utf8(value)
        .map(Some)
        .map_err(|error| malformed(key, error.as_bytes(), "text").into())
}

/// The toolstack's keys in the back end's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VifKeys {
    /// The front end's directory.
    pub frontend: String,
    /// The guest's domain.
    pub domain: DomainId,
    /// Number of the vif in the guest.
    pub handle: u32,
    /// The guest's address.
    pub mac: [u8; 6],
    /// The bridge that the guest's configuration names.
    pub bridge: Option<String>,
    /// The limit on what the guest may send, as the text in xenstore; [`Self::credit`] reads it.
    rate: Option<String>,
    /// The MTU that the guest's configuration names.
    pub mtu: Option<u32>,
}

/// The bytes that a guest may send in each interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credit {
    /// The bytes.
    pub bytes: u64,
    /// The interval.
    pub interval_us: u32,
}

impl VifKeys {
    /// Reads the keys by `get`, which takes names in the back end's directory.
    ///
    /// # Errors
    /// The error of `get`, or a [`KeyError`].
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
            rate: text(get, "rate")?,
            mtu: number(get, "mtu")?,
        })
    }

    /// The limit on what the guest may send, as `BYTES,MICROSECONDS`. An interval of 0 is no limit, as for netback.
    ///
    /// # Errors
    /// [`KeyError::Malformed`]. The guest must not send without the limit that its owner has set.
    pub fn credit(&self) -> Result<Option<Credit>, KeyError> {
        let Some(rate) = &self.rate else { return Ok(None) };
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let credit = rate.split_once(',').filter(|(bytes, us)| digits(bytes) && digits(us));
        let credit = credit.and_then(|(bytes, interval_us)| {
            Some(Credit { bytes: bytes.parse().ok()?, interval_us: interval_us.parse().ok()? })
        });
        match credit {
            Some(credit) => Ok(Some(credit).filter(|credit| credit.interval_us > 0)),
            None => Err(malformed("rate", rate.as_bytes(), "bytes and microseconds")),
        }
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

/// The back end's features.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Queue pairs, 1 to [`QUEUE_PAIRS_MAX`].
    pub queues_max: u32,
    /// Packets from and to the guest may span several requests.
    pub sg: bool,
    /// The guest may send TCP segments for weir to cut; `gso_tcpv6` is the same for IPv6.
    pub gso_tcpv4: bool,
    /// See `gso_tcpv4`.
    pub gso_tcpv6: bool,
    /// The guest may leave checksums of IPv6 packets to weir. For IPv4 it always may.
    pub ipv6_csum_offload: bool,
    /// Separate channels for the two rings of a queue.
    pub split_event_channels: bool,
    /// The guest may choose its multicast addresses.
    pub multicast_control: bool,
    /// The guest may choose hash and table by a control ring.
    pub ctrl_ring: bool,
}

impl Offer {
    /// Returns the keys of the back end's directory for these features, which must be written
    /// together.
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

/// A shared ring and its event channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingKeys {
    /// Reference of the ring's page.
    pub reference: GrantRef,
    /// The guest's end of the channel.
    pub port: EventPort,
}

/// One queue of the front end. Both ports are the same if channels are not split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueKeys {
    /// The guest's transmit ring.
    pub tx: RingKeys,
    /// The guest's receive ring.
    pub rx: RingKeys,
}

/// The front end's settings: the guest's claims, checked for their form. Xen checks whether
/// references and ports exist.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrontKeys {
    /// The queues, 1 to [`QUEUE_PAIRS_MAX`].
    pub queues: Vec<QueueKeys>,
    /// The control ring, if there is one.
    pub ctrl: Option<RingKeys>,
    /// A packet may span several receive buffers; else it takes one page.
    pub sg: bool,
    /// The guest takes uncut TCP segments; `gso_tcpv6` is the same for IPv6.
    pub gso_tcpv4: bool,
    /// See `gso_tcpv4`.
    pub gso_tcpv6: bool,
    /// The guest takes packets without checksum: by default for IPv4, on request for IPv6.
    pub ip_csum_offload: bool,
    /// See `ip_csum_offload`.
    pub ipv6_csum_offload: bool,
    /// The guest sends an event for new receive buffers.
    pub rx_notify: bool,
    /// The guest names its multicast addresses; else it gets all multicast.
    pub multicast_control: bool,
}

impl FrontKeys {
    /// Reads the keys by `get`, which takes names in the front end's directory, each once. Ignores
    /// keys of features that were not offered.
    ///
    /// # Errors
    /// The error of `get`, or a [`KeyError`].
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

/// Reads a queue's keys; with several queues each has its own directory, `prefix`.
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
