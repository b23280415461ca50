//! Requests that read.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Query};
use axum::response::Response;
use serde::Deserialize;
use serde_json::Map;
use weir_config::{PortName, TemplateName, ValueError, VifConfig};
use weir_limits::{CONTROL_ADDRESSES_MAX, CONTROL_PORTS_MAX, CONTROL_PORTS_TOGETHER_MAX};
use weir_switch::control::{
    AddressEntry, ControlHandler, Part, Request as Ask, Response as Answer, VifShown, VifStatus,
};
use weir_switch::explain::Explanation;
use weir_switch::stats::{ConnectionPage, PortStats, QueuePairStats, RuleStats, SwitchStats};

use super::write::ConfigurationSource;
use crate::api::{
    Answered, Asks, Endless, Listed, Named, Reader, counters, json, listed, port_names, written,
};
use crate::metrics::{self, Text};
use crate::problem::{Bad, Conflict, Missing, Problem};

/// The whole switch: workers, limits, and every port's counters.
#[utoipa::path(get, path = "/v1/switch", responses((status = 200, body = SwitchStats)))]
pub(super) async fn switch(Reader(api, asker): Reader) -> Answered {
    let limits = api.places.limits();
    let begin = |handler: &dyn ControlHandler| {
        let (stats, names) = counters(handler, limits)?;
        Ok::<_, Problem>((Listed::in_place_of_the_last(&stats), names))
    };
    let (list, names) = api.ask(&asker, begin).await??;
    Ok(api.of_ports(&asker, &names, list, |list, ports| list.add(&ports)).await?.answer())
}

/// The part of a list that is asked for.
#[derive(Debug, Clone, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Asked {
    /// The last entry of the part before: its name, or `VLAN/MAC` for an address.
    after: Option<String>,
    /// Most entries of this part: at most 256, or 4096 addresses.
    limit: Option<usize>,
}

/// The part of a list whose keys `key` reads from text.
fn part<Key>(
    asked: Asks<Asked>,
    most: usize,
    key: impl FnOnce(&str) -> Result<Key, Problem>,
) -> Result<Part<Key>, Problem> {
    let Query(Asked { after, limit }) = asked.map_err(|error| Problem::bad(error.body_text()))?;
    let after = after.map(|after| key(&after)).transpose()?;
    Ok(Part { after, limit: limit.unwrap_or(most) })
}

fn named_part(asked: Asks<Asked>) -> Result<Part, Problem> {
    part(asked, CONTROL_PORTS_MAX, |name| {
        name.parse().map_err(|error: ValueError| Problem::bad(error.to_string()))
    })
}

/// Ports: interfaces and uplinks, by name. The header `x-total-count` has the number of all. The next part is `after`
/// the last port of this one, and an empty part is the end.
#[utoipa::path(
    get, path = "/v1/ports", params(Asked),
    responses((status = 200, body = Vec<PortStats>), Bad)
)]
pub(super) async fn ports(Reader(api, asker): Reader, asked: Asks<Asked>) -> Answered {
    let part = named_part(asked)?;
    let begin = move |handler: &dyn ControlHandler| {
        Ok::<_, Problem>(part.of(port_names(handler)?, |name| name))
    };
    let (names, total) = api.ask(&asker, begin).await??;
    let add = |list: &mut Listed, mut ports: Vec<PortStats>| {
        ports.sort_by(|a, b| a.name.cmp(&b.name));
        list.add(&ports);
    };
    let list = Listed::in_place_of_the_last(&[(); 0]);
    let list = api.of_ports(&asker, &names, list, add).await?;
    Ok(listed(list.answer(), total))
}

/// One port.
#[utoipa::path(
    get, path = "/v1/ports/{port}", params(("port" = PortName, Path)),
    responses((status = 200, body = PortStats), Missing)
)]
pub(super) async fn port(Reader(api, asker): Reader, Named(name): Named) -> Response {
    api.show(&asker, name, |port| port).await
}

/// A port's queue pairs.
#[utoipa::path(
    get, path = "/v1/ports/{port}/queues", params(("port" = PortName, Path)),
    responses((status = 200, body = Vec<QueuePairStats>), Missing)
)]
pub(super) async fn queues(Reader(api, asker): Reader, Named(name): Named) -> Response {
    api.show(&asker, name, |port| port.queues).await
}

/// The decisions of a port's policies, and the reasons. The port `placement` stands for the placement of workers,
/// unless a port has this name.
#[utoipa::path(
    get, path = "/v1/ports/{port}/policies", params(("port" = PortName, Path)),
    responses((status = 200, body = Explanation), Missing)
)]
pub(super) async fn policies(Reader(api, asker): Reader, Named(name): Named) -> Response {
    api.of_switch(&asker, Ask::VifExplain { name }).await
}

/// A port's filter rules, with the counts of their matches.
#[utoipa::path(
    get, path = "/v1/ports/{port}/filter", params(("port" = PortName, Path)),
    responses((status = 200, body = Vec<RuleStats>), Missing)
)]
pub(super) async fn filter(Reader(api, asker): Reader, Named(name): Named) -> Response {
    api.show(&asker, name, |port| port.filter).await
}

/// Dropped frames, by port and reason.
#[utoipa::path(
    get, path = "/v1/drops",
    responses((status = 200, body = BTreeMap<PortName, BTreeMap<String, u64>>))
)]
pub(super) async fn drops(Reader(api, asker): Reader) -> Answered {
    let names = api.ask(&asker, port_names).await??;
    let add = |drops: &mut BTreeMap<_, _>, ports: Vec<PortStats>| {
        drops.extend(ports.into_iter().map(|port| (port.name, port.drops)));
    };
    let drops = api.of_ports(&asker, &names, BTreeMap::new(), add).await?;
    Ok(api.answer(&asker, move |_| Ok(json(&drops))).await)
}

/// The counters in the text format of Prometheus.
#[utoipa::path(
    get, path = "/metrics", responses((status = 200, body = String, content_type = "text/plain"))
)]
pub(super) async fn metrics(Reader(api, asker): Reader) -> Answered {
    let limits = api.places.limits();
    let begin = |handler: &dyn ControlHandler| {
        let (stats, names) = counters(handler, limits)?;
        Ok::<_, Problem>((Text::of_switch(&stats), names))
    };
    let (text, names) = api.ask(&asker, begin).await??;
    let text = api.of_ports(&asker, &names, text, |text, ports| text.add(&ports)).await?;
    Ok(written(metrics::TEXT, Body::new(text.pieces())))
}

/// Stations that the switch knows, and the port behind which each is: a part, as of `/v1/ports`.
#[utoipa::path(
    get, path = "/v1/addresses", params(Asked),
    responses((status = 200, body = Vec<AddressEntry>), Bad)
)]
pub(super) async fn addresses(Reader(api, asker): Reader, asked: Asks<Asked>) -> Answered {
    let address = |text: &str| {
        let (vlan, mac) = text.split_once('/')?;
        Some((vlan.parse().ok()?, mac.parse().ok()?))
    };
    let bad = || {
        Problem::bad("`after` is the VLAN and the MAC address of an entry, as 7/52:54:00:00:00:01")
    };
    let key = |text: &str| address(text).ok_or_else(bad);
    let ask = Ask::Addresses(part(asked, CONTROL_ADDRESSES_MAX, key)?);
    Ok(api.of_switch(&asker, ask).await)
}

/// The place at which a page begins.
#[derive(Debug, Clone, Copy, Deserialize, utoipa::IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Page {
    /// `next` of the page before.
    #[serde(default)]
    from: u32,
}

/// Connections of an interface in groups, page by page. A connection that is there for the whole time is in one page.
#[utoipa::path(
    get, path = "/v1/ports/{port}/connections", params(("port" = PortName, Path), Page),
    responses((status = 200, body = ConnectionPage), Missing)
)]
pub(super) async fn connections(
    Reader(api, asker): Reader,
    Named(name): Named,
    page: Asks<Page>,
) -> Answered {
    let Query(Page { from }) = page.map_err(|error| Problem::bad(error.body_text()))?;
    Ok(api.of_switch(&asker, Ask::Connections { name, from }).await)
}

/// Interfaces with their configurations: a part, as of `/v1/ports`.
#[utoipa::path(
    get, path = "/v1/vifs", params(Asked),
    responses((status = 200, body = Vec<VifStatus>), Bad)
)]
pub(super) async fn vifs(Reader(api, asker): Reader, asked: Asks<Asked>) -> Answered {
    let mut part = named_part(asked)?;
    let mut left = part.limit.clamp(1, CONTROL_PORTS_MAX);
    let mut list = Listed::in_place_of_the_last(&[(); 0]);
    loop {
        // Each turn asks for a few, as with ports.
        part.limit = left.min(CONTROL_PORTS_TOGETHER_MAX);
        let ask = Ask::VifList(part.clone());
        let job = |handler: &dyn ControlHandler| match handler.handle(ask) {
            Answer::Vifs { vifs, total } => {
                list.add(&vifs);
                Ok((list, vifs.len(), vifs.last().map(|it| it.config.name.clone()), total))
            }
            other => Err(Problem::of(other)),
        };
        let (so_far, some, last, total) = api.ask(&asker, job).await??;
        (list, part.after, left) = (so_far, last, left.saturating_sub(some));
        if some != part.limit || left == 0 {
            return Ok(listed(list.answer(), total));
        }
    }
}

/// One interface: each of its settings, and the source of each.
#[utoipa::path(
    get, path = "/v1/vifs/{vif}", params(("vif" = PortName, Path)),
    responses((status = 200, body = VifShown), Missing)
)]
pub(super) async fn vif(Reader(api, asker): Reader, Named(name): Named) -> Response {
    api.of_switch(&asker, Ask::VifShow { name }).await
}

/// The interface that a template makes, with a default socket. Nothing is added: send it, with changes, to
/// `/v1/vifs`.
#[utoipa::path(
    get, path = "/v1/templates/{template}/vifs/{vif}",
    params(("template" = TemplateName, Path), ("vif" = PortName, Path)),
    responses((status = 200, body = VifConfig), Bad, Missing, Conflict)
)]
pub(super) async fn vif_of_template(
    Reader(api, asker): Reader,
    named: Result<Path<(TemplateName, PortName)>, PathRejection>,
) -> Answered {
    let Path((template, name)) = named.map_err(|error| Problem::bad(error.body_text()))?;
    let ask = Ask::VifOfTemplate { template, name, keys: Map::new() };
    Ok(api.of_switch(&asker, ask).await)
}

/// The configuration file with which weir was started.
#[utoipa::path(
    get, path = "/v1/configuration", responses((status = 200, body = ConfigurationSource))
)]
pub(super) async fn configuration(Reader(api, asker): Reader) -> Response {
    api.of_switch(&asker, Ask::ConfigFile).await
}

/// The events from now on, as server-sent events. A reader that is too slow loses events, and gets their number.
#[utoipa::path(
    get, path = "/v1/events",
    responses((status = 200, body = weir_switch::events::Event, content_type = "text/event-stream"))
)]
pub(super) async fn events(Reader(api, asker): Reader) -> Answered {
    let mut response = written("text/event-stream", api.hub.read(&api, &asker).await?);
    response.extensions_mut().insert(Endless);
    Ok(response)
}
