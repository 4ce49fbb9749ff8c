"""What an explorer shows: helpers for the tests of the figures."""

from kvlib.explore import REGISTRY


def view(explorer_id, **params):
    return REGISTRY[explorer_id].view(**params)


def numbers(explorer_id, **params):
    return view(explorer_id, **params).numbers


def asked(explorer_id):
    """The right answer to its prediction."""
    prediction = REGISTRY[explorer_id].predict()
    return prediction.options[prediction.answer]
