"""The pages, a module each: `routes()`, and handlers that ask `request.app.state.site` and render a
template."""
