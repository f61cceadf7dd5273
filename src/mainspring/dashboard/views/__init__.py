"""The pages of the dashboard, one module each. A view reads through the client and renders a
template; it changes nothing."""
