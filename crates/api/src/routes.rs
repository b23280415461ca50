//! Each path and method.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::on;
use axum::{Extension, Router};
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::{PathItemExt, routes};

use crate::access::Caller;
use crate::api::{Api, written};
use crate::problem::Problem;
use crate::{access, page};

mod look;
mod read;
mod write;

pub use write::{ConfigurationSource, ConfigurationText, Done, Reloaded, Stages};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "weir",
        description = "A running weir: its state, and what the command `weir` does with it. Whoever may open the control socket may read; root, the user who started weir and those named by `admin` may write. A refusal is a `Problem`."
    ),
    components(schemas(Problem, weir_switch::events::Event))
)]
struct Described;

/// The document in the repository. The program has no code that makes it from the types.
const DOCUMENT: &str = include_str!("../../../docs/openapi.json");

/// Gives `$add` the router, and each path's handlers.
macro_rules! each_path {
    ($router:ident, $add:ident) => {
        $add!($router: read::switch);
        $add!($router: read::ports);
        $add!($router: read::port);
        $add!($router: read::queues);
        $add!($router: read::policies);
        $add!($router: read::drops);
        $add!($router: read::addresses);
        $add!($router: read::connections);
        $add!($router: write::flush);
        $add!($router: read::metrics);
        $add!($router: read::events);
        $add!($router: look::trace);
        $add!($router: look::trace_live);
        $add!($router: look::capture);
        $add!($router: document);
        $add!($router: read::filter, write::set_filter);
        $add!($router: read::vifs, write::add_vif);
        $add!($router: read::vif, write::put_vif, write::change_vif, write::remove_vif);
        $add!($router: write::put_group, write::remove_group);
        $add!($router: read::vif_of_template);
        $add!($router: read::configuration, write::reload);
        $add!($router: write::difference);
        $add!($router: write::saved);
        $add!($router: write::stages);
        $add!($router: write::upgrade);
    };
}

/// Adds handlers with the description of their types.
macro_rules! describe {
    ($router:ident: $($($part:ident)::+),+) => {
        $router = $router.routes(routes!($($($part)::+),+));
    };
}

/// Adds handlers alone. The linker leaves out what only a description needs.
macro_rules! serve {
    ($router:ident: $($($part:ident)::+),+) => {$(
        let path = routes!(@path [path()] of $($part)::+);
        for method in routes!(@path [methods()] of $($part)::+) {
            $router = $router.route(&path, on(method.to_method_filter(), $($part)::+));
        }
    )+};
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200)))]
async fn document() -> Response {
    written("application/json", DOCUMENT)
}

/// The OpenAPI document, made from the types.
#[must_use]
pub fn openapi() -> Document {
    let mut router = OpenApiRouter::<Api>::with_openapi(Described::openapi());
    each_path!(router, describe);
    router.into_openapi()
}

/// The router that answers every request.
pub(crate) fn router(api: Api) -> Router {
    let mut router = Router::new();
    each_path!(router, serve);
    router
        .fallback(async || {
            Problem::new(StatusCode::NOT_FOUND, "weir has no such path")
                .with_help("GET /openapi.json lists them")
        })
        .method_not_allowed_fallback(no_such_method)
        .layer(from_fn_with_state(api.clone(), admit))
        .merge(page::routes().method_not_allowed_fallback(no_such_method))
        .layer(from_fn(same_site))
        .with_state(api)
}

async fn no_such_method() -> Problem {
    Problem::new(StatusCode::METHOD_NOT_ALLOWED, "this path has no such method")
        .with_help("GET /openapi.json lists them")
}

/// Refuses requests that another site makes a browser send, and tells browsers how to handle an answer.
async fn same_site(Extension(caller): Extension<Caller>, request: Request, next: Next) -> Response {
    let mut response = match access::refusal(&request, caller) {
        Some(problem) => problem.into_response(),
        None => next.run(request).await,
    };
    response.headers_mut().extend(page::HEADERS);
    response
}

/// Checks the token of a client over TCP.
async fn admit(
    State(api): State<Api>,
    Extension(caller): Extension<Caller>,
    request: Request,
    next: Next,
) -> Response {
    if caller == Caller::Network {
        let authorization = request.headers().get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
        if !api.token.as_ref().is_some_and(|token| token.is_in(authorization)) {
            let refusal = Problem::new(StatusCode::UNAUTHORIZED, "no token, or a wrong one")
                .with_help("send `Authorization: Bearer TOKEN` with the token of `api_token_file`");
            let mut response = refusal.into_response();
            let bearer = HeaderValue::from_static("Bearer");
            response.headers_mut().insert(header::WWW_AUTHENTICATE, bearer);
            return response;
        }
    }
    next.run(request).await
}
