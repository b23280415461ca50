//! Each path and method.

use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use utoipa::OpenApi;
use utoipa::openapi::OpenApi as Document;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::Caller;
use crate::api::{Api, json};
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

fn routes() -> OpenApiRouter<Api> {
    OpenApiRouter::with_openapi(Described::openapi())
        .routes(routes!(read::switch))
        .routes(routes!(read::ports))
        .routes(routes!(read::port))
        .routes(routes!(read::queues))
        .routes(routes!(read::policies))
        .routes(routes!(read::drops))
        .routes(routes!(read::addresses))
        .routes(routes!(read::connections))
        .routes(routes!(write::flush))
        .routes(routes!(read::metrics))
        .routes(routes!(read::events))
        .routes(routes!(look::trace))
        .routes(routes!(look::trace_live))
        .routes(routes!(look::capture))
        .routes(routes!(document))
        .routes(routes!(read::filter, write::set_filter))
        .routes(routes!(read::vifs, write::add_vif))
        .routes(routes!(read::vif, write::put_vif, write::change_vif, write::remove_vif))
        .routes(routes!(write::put_group, write::remove_group))
        .routes(routes!(read::vif_of_template))
        .routes(routes!(read::configuration, write::reload))
        .routes(routes!(write::difference))
        .routes(routes!(write::saved))
        .routes(routes!(write::stages))
        .routes(routes!(write::upgrade))
}

/// This document.
#[utoipa::path(get, path = "/openapi.json", responses((status = 200)))]
async fn document() -> Response {
    json(&openapi())
}

/// The OpenAPI document.
#[must_use]
pub fn openapi() -> Document {
    routes().into_openapi()
}

/// The router that answers every request.
pub(crate) fn router(api: Api) -> Router {
    let (router, _) = routes().split_for_parts();
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
