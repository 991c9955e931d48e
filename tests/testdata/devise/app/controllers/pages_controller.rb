class PagesController < ApplicationController
  before_action :authenticate_user!, only: :account

  def home
    render plain: form_authenticity_token
  end

  def account
    render plain: "hello #{current_user.id}"
  end
end
