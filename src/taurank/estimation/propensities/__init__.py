"""How likely an item was shown: models of exposure, slates of known policies, and checks of both."""
