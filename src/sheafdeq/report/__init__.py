"""Tables and figures. Everything here reads records alone, so every printed number has an
origin."""
